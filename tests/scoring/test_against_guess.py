"""Only an attack that beats a blind guess clearly can judge."""

import pytest
import torch

from gradveil.scoring import MARGIN, against_guess, gain_over_guess


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_gains_are_decibels_and_exact_copies_have_a_finite_one():
    gains = gain_over_guess(torch.tensor([0.05, 0.1, 0.0]), torch.tensor([0.1, 0.05, 0.1]))
    assert gains[:2].tolist() == pytest.approx([3.0103, -3.0103], abs=1e-3)
    assert gains[2] == pytest.approx(110)


@pytest.mark.parametrize(
    ("mean", "scatter", "works"),
    [(3.0, 0.5, True), (0.5 * MARGIN, 0.01, False), (2.0, 6.0, False), (-4.0, 0.5, False)],
    ids=["clearly better", "a little better", "perhaps better", "worse"],
)
def test_a_clear_margin_is_a_mean_and_an_interval(mean, scatter, works):
    gains = mean + scatter * torch.tensor([-1.2, -0.4, 0.3, 1.3, -0.9, 0.9])
    assert against_guess(gains, seeded()).works is works


def test_one_near_copy_shows_that_it_works_whatever_the_mean():
    found = against_guess(torch.tensor([40.0, -20.0, -20.0, -20.0]), seeded())
    assert (found.copies, found.examples, found.works) == (1, 4, True)
    assert found.gain.mean < 0


@pytest.mark.parametrize(("gain", "works"), [(6.0, False), (12.0, True)])
def test_a_single_example_has_no_interval_so_only_a_copy_counts(gain, works):
    assert against_guess(torch.tensor([gain]), seeded()).works is works


def test_guesses_of_no_skill_are_rarely_taken_for_an_attack():
    """Of attacks that are as good as the guess, the margin lets few pass."""
    works = [
        against_guess(torch.randn(8, generator=seeded(seed)), seeded()).works for seed in range(100)
    ]
    assert sum(works) <= 3


def test_batches_are_what_varies():
    batches = [torch.full((16,), 4.0), torch.full((16,), -1.0)]
    assert not against_guess(batches, seeded()).works
