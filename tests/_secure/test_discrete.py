"""The discrete Gaussian: chi-square against its probabilities, and the exact comparison."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from gradveil import _secure as module
from gradveil._secure import SecureGenerator, discrete_normal


def probabilities(std: float, most: int) -> np.ndarray:
    """Of -most ... most, from the definition."""
    weights = np.exp(-(np.arange(-most, most + 1) ** 2) / (2 * std**2))
    return weights / weights.sum()


def is_discrete_gaussian(drawn: np.ndarray, std: float, most: int) -> bool:
    """Chi-square at a level of 1e-6; the ends are put together."""
    counts = np.bincount(np.clip(drawn, -most, most) + most, minlength=2 * most + 1)
    whole = probabilities(std, 12 * most)
    expected = whole[11 * most : 13 * most + 1].copy()
    expected[0] += whole[: 11 * most].sum()
    expected[-1] += whole[13 * most + 1 :].sum()
    return bool(stats.chisquare(counts, len(drawn) * expected).pvalue > 1e-6)


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("make", [SecureGenerator, lambda: torch.Generator().manual_seed(0)])
def test_it_has_the_probabilities_of_its_definition(bits, make):
    std = 2**bits
    drawn = discrete_normal(300_000, bits, make()).numpy()
    assert is_discrete_gaussian(drawn, std, 4 * std)
    for wrong in (0.97 * std, 1.03 * std, 2 / 3 * std):
        assert not is_discrete_gaussian(drawn, wrong, 4 * std)
    assert not is_discrete_gaussian(drawn + 1, std, 4 * std)


def test_a_rounded_gaussian_is_another_distribution():
    """At a standard deviation of 1/2 the two differ; the formula of the test sees it."""
    rounded = np.round(np.random.default_rng(0).normal(0, 0.5, 300_000)).astype(int)
    assert not is_discrete_gaussian(rounded, 0.5, 2)


@pytest.mark.parametrize("bits", [20, 24])
def test_a_fine_grid_is_nearly_continuous(bits):
    drawn = discrete_normal(200_000, bits, SecureGenerator()).numpy() / 2.0**bits
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert stats.kstest(1.05 * drawn, "norm").pvalue < 1e-6


@pytest.mark.slow
def test_tails_of_the_discrete_gaussian():
    drawn = discrete_normal(2 * 10**7, 10, SecureGenerator()).numpy()
    for level in (3, 4, 5):
        found, expected = np.sum(np.abs(drawn) > level * 1024), 4e7 * stats.norm.sf(level)
        assert stats.poisson.cdf(found, expected) > 1e-7
        assert stats.poisson.sf(found - 1, expected) > 1e-7


def test_proposals_dominate_the_target():
    """n cells of 2¹⁶ for a slab, and A exp(-x²/2) ≤ n all over it: checked with 50 digits."""
    table, ratios, (scale, cells) = module._slabs()
    assert len(table) == 2**16
    assert (np.bincount(table)[: len(cells)] == cells).all()
    for slab, count in enumerate(cells.tolist()):
        assert scale * mpmath.exp(-(mpmath.mpf(slab) ** 2) / 128) < count
        assert ratios[slab] == scale / count
    assert ratios[-1] == 0


@pytest.mark.parametrize(("size", "slab"), [(3, 3), (40, 40), (300, 300)])
def test_the_exact_comparison_decides_at_the_boundary(size, slab):
    """Words just below and just above the probability, which has 30 more digits than a float."""
    scale, cells = module._slabs()[2]
    with mpmath.workdps(400):
        chance = mpmath.mpf(scale) / int(cells[slab]) * mpmath.exp(-(mpmath.mpf(size) ** 2) / 128)
        whole = int(mpmath.floor(chance * mpmath.mpf(2) ** (53 + 64 * 14)))
    for shift, accepted in ((-1, True), (1, False)):
        number = whole + shift
        words = [(number >> (64 * place)) & (2**64 - 1) for place in reversed(range(14))]
        stream = iter(words)
        found = module._is_accepted(
            size, 3, slab, number >> (64 * 14), lambda _, s=stream: np.array([next(s)])
        )
        assert found is accepted


def test_in_doubt_the_exact_comparison_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_DOUBT", 1e-3)
    exact = module._is_accepted
    monkeypatch.setattr(module, "_is_accepted", lambda *args: asked.append(args) or exact(*args))
    drawn = discrete_normal(20_000, 3, torch.Generator().manual_seed(1)).numpy()
    assert len(asked) > 10
    assert is_discrete_gaussian(drawn, 8, 24)
    monkeypatch.undo()
    again = discrete_normal(20_000, 3, torch.Generator().manual_seed(1)).numpy()
    assert np.mean(drawn != again) == 0


def test_exponentials_are_enclosed():
    low, high = module._exp_between(Fraction(-7, 4), 40)
    with mpmath.workdps(80):
        exact = mpmath.exp(mpmath.mpf(-7) / 4)
        assert mpmath.mpf(low.numerator) / low.denominator < exact
        assert mpmath.mpf(high.numerator) / high.denominator > exact
    assert (high - low) / low < Fraction(3, 10**40)


def test_none_and_bad_arguments():
    assert discrete_normal(0, 8, SecureGenerator()).shape == (0,)
    for bits in (2, 25, 3.0, True):
        with pytest.raises(ValueError, match="Parameter `bits` should be an integer from 3 to 24"):
            discrete_normal(1, bits, SecureGenerator())
