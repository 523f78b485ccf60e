"""Discrete noise on a grid spends what continuous noise does, and a little more."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr

from gradveil.privacy import PrivacyAccount, epsilon_after, epsilon_on_grid
from gradveil.privacy._releases import gaussian_delta, grid_distance


def masses(bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y²/s² from 0 to 1600, and log P(y) of discrete and of rounded continuous noise."""
    s = 2.0**bits
    y = np.arange(0, int(40 * s) + 1, dtype=np.longdouble)
    w = (y / s) ** 2
    discrete = -w / 2 - np.log(1 + 2 * np.exp(-w[1:] / 2).sum())
    high, low = log_ndtr((-(y - 0.5) / s).astype(float)), log_ndtr((-(y + 0.5) / s).astype(float))
    return w.astype(float), discrete.astype(float), high + np.log1p(-np.exp(low - high))


@pytest.mark.parametrize("bits", [3, 4])
def test_the_ratio_of_both_masses_is_the_stated_one(bits):
    """Coarse grids, where float64 tells the ratio from its approximation."""
    w, discrete, rounded = masses(bits)
    squared = 4.0**bits
    error = (w**2 / 2880 + w / 720 + 1 / 128) / squared**2
    off = np.abs(rounded - discrete - (w - 1) / (24 * squared))
    seen = w < 100  # beyond, the logarithms' rounding errors are larger
    assert (off[seen] <= error[seen] + 1e-12).all()
    assert off.max() > 0.01 * error.max()


@pytest.mark.parametrize("bits", [3, 5])
@pytest.mark.parametrize("tail", [0.5, 3.0, 20.0])
def test_one_number_is_within_the_distance_but_for_the_tail(bits, tail):
    w, discrete, rounded = masses(bits)
    twice = np.where(w > 0, 2.0, 1.0)
    distance = grid_distance(1, tail, bits)
    for p, q in ((discrete, rounded), (rounded, discrete)):
        excess = twice * np.maximum(0, np.exp(p) - np.exp(distance + q))
        assert excess.sum() <= math.exp(-tail)


def test_many_numbers_are_within_the_distance_as_often_as_stated():
    """The logarithm of the ratio over n numbers, drawn from both; a fifth of η would not do.

    The correction is taken in the mean over the noise here; at 40 standard deviations it is the
    largest part of η on so coarse a grid.
    """
    bits, numbers, tail, runs = 3, 4000, 3.0, 4000
    w, discrete, rounded = masses(bits)
    ratio = discrete - rounded
    generator = np.random.default_rng(0)
    distance = grid_distance(numbers, tail, bits) - (900 - 0.0103) * numbers / 16.0**bits
    for p, sign in ((discrete, 1), (rounded, -1)):
        chance = np.where(w > 0, 2.0, 1.0) * np.exp(p)
        counts = generator.multinomial(numbers, chance / chance.sum(), size=runs)
        sums = sign * (counts @ ratio)
        assert (sums > distance).mean() <= math.exp(-tail)
        assert (sums > distance / 5).mean() > 0.01


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (1.0, 400), (0.05, 200)])
def test_the_grid_costs_next_to_nothing_and_never_less(rate, steps, neighbours, monkeypatch):
    plain = epsilon_after(1.1, rate, steps, 1e-5, neighbours)
    found = epsilon_on_grid(1.1, rate, steps, 1e-5, neighbours)
    assert plain < found < plain + (1e-5 if rate == 1 else 1e-3) * max(1, plain)
    monkeypatch.setattr("gradveil.privacy._releases.NUMBERS", 10**6)
    small = epsilon_on_grid(1.1, rate, steps, 1e-5, neighbours)
    assert plain < small < found


def test_the_stated_delta_is_not_exceeded():
    """ε and δ put into the inequality again, with the closed form for one release."""
    delta, numbers = 1e-5, 10**12
    found = epsilon_on_grid(1.0, 1.0, 1, delta)
    for tail in (30.0, 40.0, 60.0):
        distance = grid_distance(numbers, tail)
        epsilon = found - 2 * distance
        total = math.exp(distance) * gaussian_delta(epsilon, 1.0)
        total += (1 + math.exp(epsilon + distance)) * math.exp(-tail)
        if total <= delta:
            return
    raise AssertionError("no choice of the tail gives the stated δ")


def test_the_account_is_about_the_grid_unless_it_is_told_otherwise():
    options = {"noise_multiplier": 1.0, "sample_rate": 1.0, "delta": 1e-5}
    on_grid, plain = PrivacyAccount(**options), PrivacyAccount(**options, grid=False)
    for account in (on_grid, plain):
        account.step(3)
    assert on_grid.epsilon() == epsilon_on_grid(1.0, 1.0, 3, 1e-5)
    assert plain.epsilon() == epsilon_after(1.0, 1.0, 3, 1e-5)
    with pytest.raises(ValueError, match=r"Found other values of \['grid'\]"):
        plain.load_state_dict(on_grid.state_dict())


def test_edges():
    assert epsilon_on_grid(1.0, 0.5, 0, 1e-5) == 0.0
    assert epsilon_on_grid(0.0, 0.5, 3, 1e-5) == math.inf
    assert 90 < epsilon_on_grid(1.0, 1.0, 100, 1e-5) < 92
    assert epsilon_on_grid(1.0, 1.0, 10**6, 1e-5) == math.inf
    with pytest.raises(ValueError, match="`bits` should be an integer from 3 to 24"):
        grid_distance(1, 1.0, bits=40)
