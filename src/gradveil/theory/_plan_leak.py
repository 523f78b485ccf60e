"""What the noise levels themselves reveal, when they were planned from the private batch."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import jvp

from gradveil._checks import check_count, check_inputs, check_methods
from gradveil._random import generator_or_fresh
from gradveil._tensors import flatten, total
from gradveil._typing import Tensors
from gradveil.messages import Message, check_message
from gradveil.sensitivity import Estimator, Exact, draw_probes, measure, unit_vectors

if TYPE_CHECKING:
    from gradveil.defenses import Defense


def plan_information(
    message: Message, inputs: Tensor, defense: "Defense", estimator: Estimator | None = None
) -> Tensor:
    """½ Σ_i ∇_x log Σ_ii ∇_x log Σ_iiᵀ, the information in an x-dependent covariance, dense.

    For y ~ N(g(x), Σ(x)) the Fisher information has this term beside ∇g Σ⁻¹ ∇gᵀ. It does not
    depend on the scale of the noise. A plan from public data does not have it; in one from an
    earlier round it tells of that round's batch.

    Args:
        message: What the client would send.
        inputs: The private batch from which the plan is made.
        defense: The defense that plans; its noise levels must change smoothly with the inputs.
        estimator: How the plan measures sensitivities; exactly, if `None`.

    >>> from gradveil import OptimalNoise
    >>> from gradveil.sensitivity import Exact
    >>> square = lambda inputs: {"w": inputs.square().sum(0)}
    >>> private = OptimalNoise(scale=1.0, source="private")
    >>> plan_information(square, torch.tensor([[1.0, 2.0]]), private, Exact()).shape
    torch.Size([2, 2])
    """
    _check(message, inputs, defense)
    log_variances = _log_variances(
        message, inputs, defense, Exact() if estimator is None else estimator
    )
    columns = [
        flatten(jvp(log_variances, (inputs,), (axis,))[1])
        for block in unit_vectors(inputs, 1)
        for axis in block
    ]
    jacobian = torch.stack(columns, dim=1).double()
    return 0.5 * jacobian.T @ jacobian


def plan_information_trace(
    message: Message,
    inputs: Tensor,
    defense: "Defense",
    probes: int = 16,
    generator: torch.Generator | None = None,
    estimator: Estimator | None = None,
) -> tuple[float, float]:
    """The trace of `plan_information` from random directions, and its standard error.

    E_v ½ Σ_i (∂_v log Σ_ii)² over directions with E[v vᵀ] = I. The plan is measured with its own
    probes held fixed ("sketch" unless told), so that it is a smooth function of the inputs.

    >>> from gradveil import OptimalNoise
    >>> from gradveil.sensitivity import Exact
    >>> square, inputs = lambda inputs: {"w": inputs.square().sum(0)}, torch.tensor([[1.0, 2.0]])
    >>> private = OptimalNoise(scale=1.0, source="private")
    >>> trace, error = plan_information_trace(square, inputs, private, estimator=Exact())
    >>> trace > 0
    True
    """
    _check(message, inputs, defense)
    check_count(probes, "probes")
    generator = generator_or_fresh(generator)
    log_variances = _log_variances(
        message, inputs, defense, "sketch" if estimator is None else estimator
    )
    samples = [
        0.5 * float(total([flatten(jvp(log_variances, (inputs,), (v,))[1]).square()]))
        for v in draw_probes(inputs, probes, generator)
    ]
    traces = torch.tensor(samples, dtype=torch.float64)
    error = float(traces.std()) / probes**0.5 if probes > 1 else float("nan")
    return float(traces.mean()), error


def _check(message: Message, inputs: Tensor, defense: "Defense") -> None:
    check_message(message)
    check_inputs(inputs)
    check_methods(defense, "defense", ("plan", "observe"), "`OptimalNoise(scale=0.1)`")


def _log_variances(
    message: Message, inputs: Tensor, defense: "Defense", estimator: Estimator | str
) -> Callable[[Tensor], Tensors]:
    """x ↦ log Σ_ii(x) for the entries that get noise, with the probes of the plan held fixed."""
    noisy = {n: s > 0 for n, s in _std(message, inputs, defense, estimator).items()}

    def function(x: Tensor) -> Tensors:
        stds = _std(message, x, defense, estimator)
        return {n: 2 * torch.where(noisy[n], std, 1.0).log() for n, std in stds.items()}

    return function


def _std(
    message: Message, inputs: Tensor, defense: "Defense", estimator: Estimator | str
) -> Tensors:
    moments = measure(
        message,
        inputs,
        estimator,
        generator=torch.Generator().manual_seed(0),
    )
    std = getattr(defense.plan(moments), "std", None)
    if not isinstance(std, dict):
        raise ValueError(
            "Parameter `defense` should add noise. Found"
            f" {type(defense).__name__}, whose mechanism has no noise levels."
        )
    return std
