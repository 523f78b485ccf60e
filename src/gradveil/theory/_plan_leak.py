"""What the noise levels themselves reveal, when they were planned from the private batch."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import jvp

from gradveil._checks import WrongValue, check_count, check_inputs, check_methods
from gradveil._random import generator_or_fresh
from gradveil._tensors import flatten, total
from gradveil._typing import Tensors
from gradveil.messages import Message, check_message
from gradveil.sensitivity import Estimator, draw_probes, measure, unit_vectors

if TYPE_CHECKING:
    from gradveil.defenses import Defense


def plan_information(
    message: Message,
    inputs: Tensor,
    defense: "Defense",
    estimator: Estimator | str = "exact",
) -> Tensor:
    """½ Σ_i ∇_x log Σ_ii ∇_x log Σ_iiᵀ, the information in an x-dependent covariance, dense.

    For y ~ N(g(x), Σ(x)) the Fisher information has this term beside ∇g Σ⁻¹ ∇gᵀ. It does not
    depend on the scale of the noise. A plan from public data does not have it; in one from an
    earlier round it tells of that round's batch.

    Args:
        message: What the client would send.
        inputs: The private batch from which the plan is made.
        defense: The defense that plans; its noise levels must change smoothly with the inputs.
        estimator: How the plan measures sensitivities.

    >>> from gradveil import OptimalNoise
    >>> square = lambda inputs: {"w": inputs.square().sum(0)}
    >>> private = OptimalNoise(scale=1.0, source="private")
    >>> plan_information(square, torch.tensor([[1.0, 2.0]]), private).shape
    torch.Size([2, 2])
    """
    slope = _slopes(message, inputs, defense, estimator)
    columns = [slope(axis) for block in unit_vectors(inputs, 1) for axis in block]
    jacobian = torch.stack(columns, dim=1).double()
    return 0.5 * jacobian.T @ jacobian


def plan_information_trace(
    message: Message,
    inputs: Tensor,
    defense: "Defense",
    probes: int = 16,
    generator: torch.Generator | None = None,
    estimator: Estimator | str = "sketch",
) -> tuple[float, float]:
    """The trace of `plan_information` from random directions, and its standard error.

    E_v ½ Σ_i (∂_v log Σ_ii)² over directions with E[v vᵀ] = I.

    >>> from gradveil import OptimalNoise
    >>> square, inputs = lambda inputs: {"w": inputs.square().sum(0)}, torch.tensor([[1.0, 2.0]])
    >>> private = OptimalNoise(scale=1.0, source="private")
    >>> trace, error = plan_information_trace(square, inputs, private, estimator="exact")
    >>> trace > 0
    True
    """
    slope = _slopes(message, inputs, defense, estimator)
    check_count(probes, "probes")
    directions = draw_probes(inputs, probes, generator_or_fresh(generator))
    samples = [0.5 * float(total([slope(v).square()])) for v in directions]
    traces = torch.tensor(samples, dtype=torch.float64)
    error = float(traces.std()) / probes**0.5 if probes > 1 else float("nan")
    return float(traces.mean()), error


def _slopes(
    message: Message, inputs: Tensor, defense: "Defense", estimator: Estimator | str
) -> Callable[[Tensor], Tensor]:
    """v ↦ ∂_v log Σ_ii of the entries that get noise.

    The plan is measured with its own probes held fixed: so it is a smooth function of the inputs.
    """
    check_message(message)
    check_inputs(inputs)
    check_methods(defense, "defense", ("plan", "observe"), "`OptimalNoise(scale=0.1)`")

    def std(x: Tensor) -> Tensors:
        fixed = torch.Generator().manual_seed(0)
        found = getattr(defense.plan(measure(message, x, estimator, generator=fixed)), "std", None)
        if not isinstance(found, dict):
            named = f"{type(defense).__name__}, whose mechanism has no noise levels"
            raise WrongValue("defense", "add noise", named)
        return found

    noisy = {name: level > 0 for name, level in std(inputs).items()}

    def log_variances(x: Tensor) -> Tensors:
        return {n: 2 * torch.where(noisy[n], s, 1.0).log() for n, s in std(x).items()}

    return lambda v: flatten(jvp(log_variances, (inputs,), (v,))[1])
