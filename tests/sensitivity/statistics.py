"""Is a random estimate right on average, and is its error the one that theory says?"""

import functools

import torch
from torch import Tensor

from gradveil.messages import Message
from gradveil.sensitivity import Estimator, Exact, Measurement, PerExample, unit_vectors
from gradveil.sensitivity._estimators import _example_derivatives


def variances(
    estimator: Estimator, message: Message, inputs: Tensor, probes: int
) -> dict[str, Tensor]:
    """2 s⁴/k of k Gaussian probes; of each example on its own, 2 Σ_b s_b⁴/k."""
    if not isinstance(estimator, PerExample):
        exact = Exact()(message, inputs, torch.Generator()).squared_sensitivities
        return {name: 2 * square.square() / probes for name, square in exact.items()}
    (axes,) = unit_vectors(inputs[0], inputs[0].numel())
    everywhere = axes.unsqueeze(1).expand(-1, *inputs.shape)
    (columns,) = _example_derivatives(message, inputs, everywhere, len(axes) * len(inputs))
    split = {n: c.unflatten(0, (len(axes), len(inputs))) for n, c in columns.items()}
    return {n: 2 * c.square().sum(0).square().sum(0) / probes for n, c in split.items()}


def assert_within_standard_errors(
    found: Measurement, exact: dict[str, Tensor], errors: dict[str, Tensor], limit: float = 4.0
) -> None:
    """Every entry is within `limit` standard errors (given as variances) of the exact value.

    With a thousand probes or more an entry's error is close to normal. Entries without
    sensitivity must be estimated as such.
    """
    estimate, truth = flat(found.squared_sensitivities), flat(exact)
    alive = truth > 1e-20 * truth.max()  # what is below is 0 up to rounding
    assert not bool((estimate[~alive] > 1e-20 * truth.max()).any())
    scores = (estimate - truth)[alive] / flat(errors)[alive].sqrt()
    assert float(scores.abs().max()) < limit, (
        f"{int((scores.abs() >= limit).sum())} of {len(scores)} entries are {limit} standard"
        f" errors off or more, the worst {scores[scores.abs().argmax()]:+.1f}"
    )


@functools.cache
def spread(estimator: Estimator, message: Message, inputs: Tensor, times: int) -> float:
    """The standard deviation of estimates over exact values (root mean square over entries)."""
    generator = torch.Generator().manual_seed(0)
    exact = flat(Exact()(message, inputs, generator).squared_sensitivities)
    found = [estimator(message, inputs, generator) for _ in range(times)]
    ratios = torch.stack([flat(each.squared_sensitivities) / exact for each in found])
    return float(ratios.var(0).mean().sqrt())


def expected_spread(estimator: Estimator, message: Message, inputs: Tensor, probes: int) -> float:
    """What theory says of it."""
    exact = flat(Exact()(message, inputs, torch.Generator()).squared_sensitivities)
    squares = flat(variances(estimator, message, inputs, probes)) / exact.square()
    return float(squares.mean().sqrt())


def flat(tensors: dict[str, Tensor]) -> Tensor:
    """All entries in one row."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
