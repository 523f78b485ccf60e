"""Noise on a grid: what is sent are multiples of the step, and norms stay within the clip."""

import numpy as np
import pytest
import torch
from scipy import stats

from gradveil._secure import SecureGenerator, clip_for_grid, grid_step, release_on_grid


def test_what_is_released_is_rounded_values_and_noise():
    values = torch.linspace(-1, 1, 50_000, dtype=torch.float64)
    sent = release_on_grid(values, 0.5, SecureGenerator(), bits=6)
    step = grid_step(0.5, 6)
    assert step == 0.5 / 64
    whole = sent / step
    assert torch.equal(whole, whole.round())
    assert stats.kstest(((sent - values) / 0.5).numpy(), "norm").pvalue > 1e-6
    assert stats.kstest(((sent - values) / 0.5 * 1.5).numpy(), "norm").pvalue < 1e-6


def test_values_of_one_cell_give_the_same_numbers():
    """With the same noise the release depends on the nearest step only."""
    sent = [
        release_on_grid(torch.tensor([value]), 1.0, torch.Generator().manual_seed(0), bits=4)
        for value in (0.1249, 0.0626, 0.0624)
    ]
    assert 0.1249 / grid_step(1.0, 4) == pytest.approx(1.9984)
    assert sent[1] == sent[0] - grid_step(1.0, 4)
    assert sent[1] == sent[2]


@pytest.mark.parametrize("entries", [1, 7, 400])
def test_rounded_examples_stay_within_the_clip(entries):
    """Vectors that rounding makes as long as it can: each entry half a step from the grid."""
    numbers = np.random.default_rng(0)
    step, clip = 0.01, 1.0
    for rounded, most in (("each", 0.5), ("sum", 1.0)):
        assert clip_for_grid(clip, entries, step, rounded=rounded) == pytest.approx(
            clip - most * np.sqrt(entries) * step
        )
    limit = clip_for_grid(clip, entries, step)
    for _ in range(200):
        vector = (numbers.integers(0, 50, entries) + 0.5000001) * step
        vector *= min(1, limit / np.linalg.norm(vector))
        assert np.linalg.norm(np.round(vector / step) * step) <= clip


def test_sums_that_are_rounded_move_by_the_clip_at_most():
    numbers = np.random.default_rng(1)
    step, entries = 0.01, 300
    limit = clip_for_grid(1.0, entries, step, rounded="sum")
    for _ in range(200):
        others = np.full(entries, 0.4999999 * step)
        added = numbers.uniform(0, 0.02 * step, entries) + numbers.normal(size=entries) * 1e-3
        added *= limit / np.linalg.norm(added)
        moved = np.round((others + added) / step) - np.round(others / step)
        assert np.linalg.norm(moved) * step <= 1.0


def test_a_grid_that_is_too_coarse_is_refused():
    with pytest.raises(ValueError, match="Take a finer grid: more `bits`"):
        clip_for_grid(1.0, 10**6, 0.01)


def test_values_beyond_the_grid_are_refused():
    with pytest.raises(ValueError, match="should be within 4503599627370496 steps"):
        release_on_grid(torch.tensor([1e12]), 1e-6, SecureGenerator())
    with pytest.raises(ValueError, match="should be finite"):
        release_on_grid(torch.tensor([torch.nan]), 1.0, SecureGenerator())
