"""Is a random estimate right on average, and does it know its own error?"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil.messages import Message
from gradveil.sensitivity import Estimator, Exact, Measurement


def assert_within_standard_errors(
    found: Measurement, exact: dict[str, Tensor], limit: float = 4.0
) -> None:
    """Every entry is within `limit` of its own standard errors of the exact value.

    With a thousand probes or more an entry's error is close to normal. Entries without
    sensitivity must be estimated as such.
    """
    scores = z_scores(found, exact)
    assert float(scores.abs().max()) < limit, (
        f"{int((scores.abs() >= limit).sum())} of {len(scores)} entries are {limit} standard"
        f" errors off or more, the worst {scores[scores.abs().argmax()]:+.1f}"
    )


def z_scores(found: Measurement, exact: dict[str, Tensor]) -> Tensor:
    """(estimate - exact) / standard error for every entry with a sensitivity."""
    assert found.variances is not None
    estimate, truth = flat(found.squared_sensitivities), flat(exact)
    alive = truth > 1e-20 * truth.max()  # what is below is 0 up to rounding
    assert not bool((estimate[~alive] > 1e-20 * truth.max()).any())
    return (estimate - truth)[alive] / flat(found.variances)[alive].sqrt()


class Repetitions(NamedTuple):
    """Independent estimates of squared sensitivities, relative to the exact ones."""

    ratios: Tensor
    """(repetitions, entries)."""
    variances: Tensor
    """(repetitions, entries): what each estimate says of its own variance, in the same unit."""

    def spread(self) -> float:
        """The standard deviation over repetitions (root mean square over entries)."""
        return float(self.ratios.var(0).mean().sqrt())

    def reported(self) -> float:
        """The standard error that the estimates report (root mean square)."""
        return float(self.variances.mean().sqrt())


@functools.cache
def repeat(estimator: Estimator, message: Message, inputs: Tensor, times: int) -> Repetitions:
    """That many estimates, from one generator; remembered for the next test."""
    generator = torch.Generator().manual_seed(0)
    exact = flat(Exact()(message, inputs, generator).squared_sensitivities)
    found = [estimator(message, inputs, generator) for _ in range(times)]
    return Repetitions(
        torch.stack([flat(each.squared_sensitivities) / exact for each in found]),
        torch.stack([flat(each.variances) / exact.square() for each in found]),
    )


def assert_knows_its_error(found: Repetitions, factor: float = 1.25) -> None:
    """The reported standard error is the spread over repetitions, on average over entries.

    Some 50 repetitions of 60 entries, of which groups move together, settle a standard deviation
    to within a tenth.
    """
    ratio = found.reported() / found.spread()
    assert 1 / factor < ratio < factor, f"the reported standard error is {ratio:.2f} of the spread"


def flat(tensors: dict[str, Tensor] | None) -> Tensor:
    """All entries in one row."""
    assert tensors is not None
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
