"""The bound from candidates against direct simulations of the same game."""

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientNoise, NoDefense, OptimalNoise
from gradveil.attacks import IdentificationReport, identify_trials
from gradveil.attacks._identify import Population
from gradveil.defenses import Defense
from tests.attacks.tiny import generator

ENTRIES, SCALE, TRIALS = 4, 0.8, 120


def population(count: int = 4000) -> tuple[Tensor, Tensor]:
    images = torch.randn(count, ENTRIES, generator=generator(1), dtype=torch.float64)
    return images, torch.zeros(count, dtype=torch.int64)


LINEAR = nn.Linear(ENTRIES, 1, bias=False).double()
"""Its gradient is the sum of the inputs, if the loss is the sum of its outputs."""


def total(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum()


def bound(defense: Defense | None = None, **options: object) -> IdentificationReport:
    settings = {"num_classes": 1, "trials": TRIALS, "per_draw": 10, "generator": generator(2)}
    defense = GradientNoise(SCALE) if defense is None else defense
    return identify_trials(LINEAR, total, population(), defense, **{**settings, **options})  # type: ignore[arg-type]


def simulated(candidates: int, games: int = 4000) -> tuple[Tensor, float]:
    """Errors of the posterior mean and the rate of the game itself: y = x + noise."""
    draws = generator(5)
    own = torch.randn(games, candidates, ENTRIES, generator=draws, dtype=torch.float64)
    noise = torch.randn(games, ENTRIES, generator=draws, dtype=torch.float64)
    sent = own[:, 0] + SCALE * noise
    posterior = (-(sent[:, None] - own).square().sum(2) / (2 * SCALE**2)).softmax(1)
    mean = (posterior.unsqueeze(2) * own).sum(1)
    right = (posterior.argmax(1) == 0).double().mean()
    return (mean - own[:, 0]).square().mean(1), float(right)


def test_it_is_the_error_of_the_game() -> None:
    found = bound(candidates=16, batch_size=2)
    for point, candidates in zip(found.trend, (8, 16), strict=True):
        errors, right = simulated(candidates)
        expected, tolerance = float(errors.mean()), 3 * float(errors.std()) / TRIALS**0.5
        assert tolerance < 0.5 * expected
        assert point.candidates == candidates
        assert point.error.mean == pytest.approx(expected, abs=tolerance)
        assert point.rate.mean == pytest.approx(right, abs=3 * 0.5 / TRIALS**0.5)
        assert point.prior_error.mean == pytest.approx(1 - 1 / candidates, abs=0.25)
    assert (found.error, found.rate) == (found.trend[-1].error, found.trend[-1].rate)
    assert (found.batch_size, len(found.trials), found.candidates) == (2, TRIALS, 16)


def test_it_grows_with_candidates_up_to_the_error_of_the_best_attacker() -> None:
    """Without candidates the best is y / (1 + σ²), with error σ² / (1 + σ²) per entry."""
    found = bound(candidates=150, per_draw=20)
    errors = [point.error.mean for point in found.trend]
    assert [point.candidates for point in found.trend] == [8, 32, 128, 150]
    exact = SCALE**2 / (1 + SCALE**2)
    assert errors[0] < errors[1] < errors[2]
    assert errors[0] < 0.6 * exact
    assert 0.7 * exact < errors[-1]
    assert found.error.low < exact
    assert not found.reason


def test_classes_count_as_often_as_the_data_have_them() -> None:
    """The bound is a mean over the data; over classes it would be above what attackers reach."""
    labels, draws = torch.tensor([0] * 90 + [1] * 30 + [2] * 4), generator(3)
    drawn_from = Population(torch.zeros(124, 1), labels, 8, 1, True)
    found = [int(labels[drawn_from.draw(1, draws).candidates[0]]) for _ in range(400)]
    assert 2 not in found  # too few to choose from
    assert found.count(0) / 400 == pytest.approx(0.75, abs=0.08)


def test_an_undefended_message_promises_nothing() -> None:
    found = bound(NoDefense(), candidates=16, batch_size=3, trials=10)
    assert found.error.high < 1e-12
    assert found.rate.mean == 1


def test_candidates_of_other_classes() -> None:
    """A class that is told is an advantage: means of ±3 are half of the error without it."""
    images, _ = population()
    labels = torch.arange(len(images)) % 2
    apart = images + 6 * labels.unsqueeze(1) - 3
    errors = [
        identify_trials(
            LINEAR, total, (apart, labels), GradientNoise(5.0), num_classes=2, candidates=16,
            trials=40, per_draw=4, one_class=one_class, generator=generator(3),
        )
        for one_class in (True, False)
    ]  # fmt: skip
    assert errors[0].prior_error.high < 2 < errors[1].prior_error.low
    assert errors[0].error.mean < errors[1].error.mean
    assert [error.one_class for error in errors] == [True, False]


def test_a_private_plan_has_an_estimated_likelihood() -> None:
    found = bound(OptimalNoise(0.5, source="private"), trials=2, candidates=4)
    assert "made from the private batch" in found.reason


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="`candidates`"):
        bound(candidates=0)
    with pytest.raises(TypeError, match="`defense`"):
        bound(defense="noise")  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_numbers(global_rng_watch: None) -> None:
    options = {"trials": 6, "candidates": 8, "batch_size": 2}
    assert bound(**options) == bound(**{**options, "generator": generator(2)})
