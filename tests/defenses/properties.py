"""One assertion for each mathematical property of a plan."""

from collections.abc import Iterator

import torch
from torch import Tensor

from gradveil import Moments, utility
from gradveil.mechanisms import Mechanism
from gradveil.theory import fisher_trace

from .cases import Tensors, kept, like, powers, row

EXACT = 1e-10
"""Relative error of sums and roots in float64, which keep twelve digits and more."""


def noise_price(moments: Moments, mechanism: Mechanism) -> float:
    """-U2 = Σ g_i² Σ_ii."""
    return float((row(moments.squared_values) * powers(mechanism)).sum())


def with_powers(variances: Tensor, mechanism: Mechanism) -> Mechanism:
    """The mechanism with other variances of the noise."""
    assert isinstance(mechanism.std, dict)
    return Mechanism(like(variances.sqrt(), mechanism.std), mechanism.keep, mechanism.clip)


def at_equal_price(moments: Moments, variances: Tensor, mechanism: Mechanism) -> Mechanism:
    """Noise in the proportions of `variances`, scaled to the second-order utility of a plan."""
    factor = noise_price(moments, mechanism) / (row(moments.squared_values) * variances).sum()
    return with_powers(factor * variances, mechanism)


def assert_no_better_noise(
    moments: Moments, mechanism: Mechanism, rivals: Iterator[Tensor]
) -> None:
    """No rival of equal second-order utility has less Fisher information."""
    planned = fisher_trace(moments, mechanism)
    for variances in rivals:
        rival = at_equal_price(moments, variances, mechanism)
        assert fisher_trace(moments, rival) >= planned * (1 - EXACT)


def perturbed(variances: Tensor, seed: int = 0, count: int = 40) -> Iterator[Tensor]:
    """Every variance times its own log-normal factor, from slightly off to wildly off."""
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        spread = (1e-3, 0.1, 1.0, 4.0)[index % 4]
        shift = torch.randn(variances.shape, generator=generator, dtype=torch.float64)
        yield variances * (spread * shift).exp()


def assert_noise_is_stationary(moments: Moments, mechanism: Mechanism) -> None:
    """KKT: s_i² / Σ_ii² = μ g_i² with one μ for all entries that are worth and reveal something."""
    squares, slopes = row(moments.squared_values), row(moments.known_squared_sensitivities)
    counts = (squares > 0) & (slopes > 0)
    assert bool((powers(mechanism)[counts] > 0).all())
    multipliers = (slopes / powers(mechanism).square() / squares)[counts]
    torch.testing.assert_close(
        multipliers, multipliers.mean().expand_as(multipliers), rtol=EXACT, atol=0.0
    )
    assert bool((powers(mechanism)[slopes == 0] == 0).all())


def assert_threshold_separates(scores: Tensor, keep: Tensor, fractions: int = 1) -> None:
    """KKT of the knapsack: kept entries score lowest, and only the borderline is in between."""
    between = (keep > 0) & (keep < 1)
    assert int(between.sum()) <= fractions
    highest_kept = scores[keep > 0].max() if bool((keep > 0).any()) else -torch.inf
    lowest_pruned = scores[keep < 1].min() if bool((keep < 1).any()) else torch.inf
    assert highest_kept <= lowest_pruned


def assert_utility(
    values: Tensors,
    mechanism: Mechanism,
    first: float | None = None,
    second: float | None = None,
    rtol: float = EXACT,
) -> None:
    """U1 and U2 are those asked for."""
    found = utility(values, mechanism)
    for wanted, got in ((first, found.first), (second, found.second)):
        if wanted is not None:
            assert abs(got - wanted) <= rtol * abs(wanted), f"{got} instead of {wanted}"


def assert_feasible_keep(moments: Moments, mechanism: Mechanism, budget: float) -> None:
    """0 ≤ keep ≤ 1 and Σ keep_i g_i² = budget."""
    keep = kept(mechanism)
    assert bool(((keep >= 0) & (keep <= 1)).all())
    spent = float((keep * row(moments.squared_values)).sum())
    assert abs(spent - budget) <= EXACT * float(row(moments.squared_values).sum())
