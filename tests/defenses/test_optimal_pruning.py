"""Theorem 4 and Eq. 19 with erratum 3: a fractional knapsack keeps the least revealing entries."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from gradveil import GradientNoise, GradientPruning, Moments, OptimalNoise, OptimalPruning
from gradveil.defenses import keep_within
from gradveil.mechanisms import Mechanism
from gradveil.theory import fisher_trace

from .cases import SWEEPS, Sweep, kept, like, moments_of, row
from .properties import (
    EXACT,
    assert_feasible_keep,
    assert_threshold_separates,
    assert_utility,
)

NOISE = GradientNoise(0.5)


def plan(moments: Moments, share: float, kind: type = OptimalPruning) -> tuple[Mechanism, float]:
    """The plan that keeps this share of the first-order utility, and that budget."""
    budget = share * float(row(moments.squared_values).sum())
    options = {"floor": 0.0} if kind is OptimalPruning else {}
    return kind(utility_budget=budget, noise=NOISE, **options).plan(moments), budget


def information(moments: Moments, keep: Tensor) -> float:
    """tr J of keeping with these probabilities under isotropic noise: Eq. 5 for a mixed defense."""
    mask = like(keep, moments.squared_values)
    return fisher_trace(moments, Mechanism(std=0.5, keep=mask))


def ratios(moments: Moments) -> Tensor:
    return row(moments.known_squared_sensitivities) / row(moments.squared_values)


def rivals(moments: Moments, keep: Tensor, budget: float, seed: int) -> Iterator[Tensor]:
    """Other probabilities of exactly the same utility: exchanges, mixtures and anything at all."""
    generator = torch.Generator().manual_seed(seed)
    squares = row(moments.squared_values)
    for index in range(60):
        anything = torch.rand(len(keep), generator=generator, dtype=torch.float64)
        if index % 3 == 1:
            anything = (anything < 0.5).double()
        if index % 3 == 2:
            anything = (keep + 0.01 * (anything - 0.5)).clamp(0, 1)
        yield meeting(squares, anything, budget)


def meeting(squares: Tensor, keep: Tensor, budget: float) -> Tensor:
    """Shrink the probabilities, or the chances of being pruned, until the budget is met."""
    spent, most = (keep * squares).sum(), squares.sum()
    if spent > budget:
        return keep * (budget / spent)
    return 1 - (1 - keep) * ((most - budget) / (most - spent))


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_no_feasible_pruning_reveals_less(sweep: Sweep, share: float) -> None:
    moments = sweep.moments(6)
    mechanism, budget = plan(moments, share)
    assert_feasible_keep(moments, mechanism, budget)
    assert_threshold_separates(ratios(moments), kept(mechanism))
    planned = information(moments, kept(mechanism))
    for rival in rivals(moments, kept(mechanism), budget, seed=6):
        # exchanging weights of equal ratios costs nothing: equality up to rounding
        assert information(moments, rival) >= planned * (1 - EXACT)


@pytest.mark.parametrize("sweep", SWEEPS[:1] + SWEEPS[6:], ids=str)
@pytest.mark.parametrize("share", [0.1, 0.6])
def test_linear_programming_agrees(sweep: Sweep, share: float) -> None:
    moments = sweep.moments(7)
    mechanism, budget = plan(moments, share)
    squares, slopes = row(moments.squared_values), row(moments.known_squared_sensitivities)
    solved = linprog(
        slopes.numpy(), A_eq=squares.numpy()[None], b_eq=np.array([budget]), bounds=(0, 1)
    )
    assert solved.status == 0
    # the solver stops at a tolerance of 1e-7
    assert float((kept(mechanism) * slopes).sum()) == pytest.approx(solved.fun, rel=1e-6)


@pytest.mark.parametrize(
    "sweep", [s for s in SWEEPS if s.decades > 0 and s.name != "one entry"], ids=str
)
def test_erratum_3_pruning_the_smallest_ratios_is_worse(sweep: Sweep) -> None:
    """The theorem prints "prunes elements with the smallest value"; so printed, it is the worst."""
    moments = sweep.moments(8)
    mechanism, budget = plan(moments, 0.5)
    squares = row(moments.squared_values)
    printed = keep_within(-ratios(moments), squares, budget)
    assert float((printed * squares).sum()) == pytest.approx(budget, rel=EXACT, abs=0)
    best, magnitude = kept(mechanism), kept(plan(moments, 0.5, GradientPruning)[0])
    found = [information(moments, keep) for keep in (best, magnitude, printed)]
    assert found == sorted(found)
    assert found[2] > 1.5 * found[0]


@pytest.mark.parametrize("sweep", SWEEPS, ids=str)
@pytest.mark.parametrize("ratio", [0.3, 0.8])
def test_ratio_keeps_the_lowest_scores(sweep: Sweep, ratio: float) -> None:
    moments = sweep.moments(9)
    keep = kept(OptimalPruning(ratio, floor=0.0).plan(moments))
    assert_threshold_separates(ratios(moments), keep, fractions=0)
    assert int(keep.sum()) == moments.size - round(ratio * moments.size)


@pytest.mark.parametrize("seed", range(4))
def test_order_is_the_best_with_optimal_noise_too(seed: int) -> None:
    """tr J ∝ (Σ_kept s|g|)² at a given price of noise: every set worth as much reveals more."""
    moments = SWEEPS[0].moments(seed)
    noise = OptimalNoise(utility_budget=0.1, cap=float("inf"), floor=0.0)
    mechanism = OptimalPruning(0.6, noise=noise, floor=0.0).plan(moments)
    squares, planned = row(moments.squared_values), fisher_trace(moments, mechanism)
    worth = float((kept(mechanism) * squares).sum())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(50):
        order = torch.randperm(moments.size, generator=generator)
        enough = squares[order].cumsum(0) - squares[order] < worth
        mask = torch.zeros_like(squares).scatter_(0, order, enough.double())
        assert float((mask * squares).sum()) >= worth * (1 - EXACT)
        support = like(mask, moments.squared_values)
        variances = noise.variances(noise.shape(moments), moments, support)
        rival = Mechanism({n: v.sqrt() for n, v in variances.items()}, support)
        assert fisher_trace(moments, rival) >= planned * (1 - EXACT)


def test_global_form_prunes_by_the_ratio_of_the_means() -> None:
    batches = [SWEEPS[0].moments(seed) for seed in range(5)]
    mean = Moments.average(batches)
    mechanism, budget = plan(mean, 0.5)
    assert_threshold_separates(ratios(mean), kept(mechanism))
    for seed in range(5):
        local = meeting(row(mean.squared_values), kept(plan(batches[seed], 0.5)[0]), budget)
        assert information(mean, local) > information(mean, kept(mechanism))


def test_worthless_entries_go_first() -> None:
    """g_i = 0: nothing is lost without it, whatever it reveals, even nothing."""
    values = {"w": torch.tensor([0.0, 2.0, 0.0, 1.0]).double()}
    moments = moments_of(values, {"w": torch.tensor([0.0, 50.0, 3.0, 1.0]).double()})
    assert kept(OptimalPruning(0.5).plan(moments)).tolist() == [0.0, 1.0, 0.0, 1.0]
    keep = kept(OptimalPruning(utility_budget=5.0).plan(moments))
    assert keep.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert_utility(values, OptimalPruning(utility_budget=3.0).plan(moments), first=3.0)


def test_floor_limits_the_score_of_small_values() -> None:
    values = {"w": torch.tensor([1e-3, 1.0]).double()}
    moments = moments_of(values, {"w": torch.tensor([1e-2, 2.0]).double()})
    assert kept(OptimalPruning(0.5, floor=0.0).plan(moments)).tolist() == [0.0, 1.0]
    assert kept(OptimalPruning(0.5, floor=0.1).plan(moments)).tolist() == [1.0, 0.0]


def test_layer_granularity_prunes_tensor_by_tensor() -> None:
    moments = SWEEPS[0].moments(1)
    scores = {
        n: float(moments.known_squared_sensitivities[n].mean() / moments.squared_values[n].mean())
        for n in moments.squared_values
    }
    mechanism = OptimalPruning(0.5, granularity="layer").plan(moments)
    assert isinstance(mechanism.keep, dict)
    by_tensor = {n: float(mechanism.keep[n].mean()) for n in scores}
    shares = [by_tensor[name] for name in sorted(scores, key=lambda name: scores[name])]
    assert shares == sorted(shares, reverse=True)
    assert sum(0 < share < 1 for share in shares) <= 1
