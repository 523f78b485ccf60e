"""Spearman's correlation against SciPy, and its interval against a planted one."""

import pytest
import torch
from scipy.stats import spearmanr

from gradveil.studies.shared import mean_correlation, rank_correlation


def draw(count: int, seed: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(count, generator=generator)
    return first, first + noise * torch.randn(count, generator=generator)


@pytest.mark.parametrize("decimals", [0, 6])
def test_it_is_scipys_with_ties_and_without(decimals):
    first, second = (x.round(decimals=decimals) for x in draw(40, 0, 1.0))
    expected = spearmanr(first.numpy(), second.numpy()).statistic
    assert float(rank_correlation(first, second)) == pytest.approx(expected, abs=1e-12)


def test_a_diverged_run_is_worse_than_all_others():
    loss = torch.tensor([1.0, 2.0, float("inf")])
    assert float(rank_correlation(torch.tensor([1.0, 2.0, 3.0]), loss)) == pytest.approx(1.0)


def test_the_mean_over_groups_lies_in_its_interval():
    mean, low, high = mean_correlation([draw(20, seed, 0.7) for seed in range(6)])
    assert low < mean < high
    assert low > 0.5
    assert high < 1.0


def test_nothing_that_depends_has_an_interval_around_0():
    _, low, high = mean_correlation([(draw(30, s, 0)[0], draw(30, s + 9, 0)[0]) for s in range(8)])
    assert low < 0 < high


def test_groups_without_differences_do_not_count():
    flat = torch.ones(5), torch.arange(5.0)
    assert mean_correlation([flat, draw(5, 0, 0.0)])[0] == pytest.approx(1.0)
    assert mean_correlation([flat]) == (None, None, None)
    assert mean_correlation([]) == (None, None, None)
