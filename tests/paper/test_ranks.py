"""Spearman's correlation against SciPy, and its interval against a planted one."""

import pytest
import torch
from scipy.stats import spearmanr

from paper.numbers import Runs, mean_correlation, rank_correlation


def drawn_runs(count: int, seed: int, noise: float) -> Runs:
    return Runs(*draw(count, seed, noise), [*map(str, range(count))])


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
    mean, low, high = mean_correlation([drawn_runs(20, seed, 0.7) for seed in range(6)])
    assert low < mean < high
    assert low > 0.5
    assert high < 1.0


def test_counts_are_repetitions():
    first, second = (x.round(decimals=0) for x in draw(12, 0, 1.0))
    counts = torch.randint(4, (5, 12), generator=torch.Generator().manual_seed(1))
    found = rank_correlation(first, second, counts)
    for row, own in zip(counts, found, strict=True):
        repeated = (x.repeat_interleave(row).numpy() for x in (first, second))
        assert float(own) == pytest.approx(spearmanr(*repeated).statistic, abs=1e-12)


def test_nothing_that_depends_has_an_interval_around_0():
    names = [*map(str, range(30))]
    runs = [Runs(draw(30, s, 0)[0], draw(30, s + 9, 0)[0], names) for s in range(8)]
    _, low, high = mean_correlation(runs)
    assert low < 0 < high


def test_the_interval_holds_0_where_losses_belong_to_the_subjects_alone():
    """The same eight subjects are in all groups: groups do not make their order any surer."""
    names, held = [*map(str, range(8))], 0
    for trial in range(60):
        generator = torch.Generator().manual_seed(trial)
        cost, loss = torch.randn(2, 8, generator=generator)
        groups = [
            Runs(cost, loss + 0.3 * torch.randn(8, generator=generator), names) for _ in range(6)
        ]
        _, low, high = mean_correlation(groups)
        held += low <= 0 <= high
    assert held >= 55  # 48 where the runs of each group are drawn on their own


def test_groups_without_differences_do_not_count():
    names = [*map(str, range(5))]
    flat = Runs(torch.ones(5), torch.arange(5.0), names)
    assert mean_correlation([flat, drawn_runs(5, 0, 0.0)])[0] == pytest.approx(1.0)
    assert mean_correlation([flat]) == (None, None, None)
    assert mean_correlation([]) == (None, None, None)
