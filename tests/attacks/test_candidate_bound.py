"""The bound from candidates against direct simulations of the same game."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientNoise, NoDefense, OptimalNoise
from gradveil.attacks import IdentificationReport, ThreatModel, identify_trials, observe
from gradveil.attacks._identify_trials import Population, marginal
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


def test_unknown_neighbours_are_summed_over() -> None:
    """Two neighbours of three candidates each: log of the mean of nine normal densities."""
    (images, labels), draws = population(200), generator(6)
    drawn_from = Population(images, labels, 5, 3, True)
    draw = drawn_from.draw(2, draws)
    sets = drawn_from.neighbours(draw, 3, draws)
    assert all(s[0] == own for s, own in zip(sets, draw.rest, strict=True))
    assert len(torch.cat([draw.candidates, *sets]).unique()) == 5 + 3 + 3
    messages = [
        observe(
            LINEAR, total, drawn_from.batch(draw, trial), GradientNoise(SCALE), num_classes=1,
            threat=ThreatModel(mechanism="known"), generator=draws,
        )
        for trial in range(2)
    ]  # fmt: skip
    found = marginal(
        drawn_from, draw, messages, [torch.stack(chosen) for chosen in product(*sets)], draws
    )
    candidates = images[draw.candidates]
    for message, one in zip(messages, found, strict=True):
        y = message.sent["weight"].flatten()
        sums = (images[sets[0]][:, None] + images[sets[1]][None]).view(9, ENTRIES)
        means = candidates[:, None] + sums[None]
        normal = torch.distributions.Normal(means, SCALE)
        expected = normal.log_prob(y).sum(2).exp().mean(1).log()
        torch.testing.assert_close(one.log_likelihoods, expected)
        assert torch.equal(one.inputs, candidates)


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


@pytest.mark.slow
def test_unknown_neighbours_leave_a_larger_error() -> None:
    known, unknown = (
        bound(candidates=16, batch_size=2, rest=r, neighbours=6, per_draw=15)
        for r in ("known", "unknown")
    )
    assert unknown.error.mean > 1.2 * known.error.mean
    assert unknown.rate.mean < known.rate.mean
    assert (known.rest, unknown.rest) == ("known", "unknown")
    assert bound(trials=2, candidates=4, rest="unknown").rest == "known"  # there is none


def test_an_undefended_message_promises_nothing() -> None:
    found = bound(NoDefense(), candidates=16, batch_size=3, rest="unknown", neighbours=2, trials=10)
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
    with pytest.raises(ValueError, match=r"at most 65536 cases.*256, 16 and 5: 16777216"):
        bound(candidates=256, batch_size=5, rest="unknown")
    with pytest.raises(ValueError, match="`rest` should be one of"):
        bound(rest="guessed")
    with pytest.raises(ValueError, match="`candidates`"):
        bound(candidates=0)
    with pytest.raises(TypeError, match="`defense`"):
        bound(defense="noise")  # type: ignore[arg-type]


def test_fewer_neighbours_are_taken_where_fewer_are_left() -> None:
    images, labels = population(12)
    large = Population(images, labels, 8, 2, True)
    draw = large.draw(1, generator(0))
    (sets,) = large.neighbours(draw, 4000, generator(1))
    assert len(sets) == 4  # twelve without eight candidates
    small = Population(images, labels, 11, 2, True)
    nothing_left = small.draw(1, generator(0))
    with pytest.raises(ValueError, match=r"other places of the batch. Found none that is left"):
        small.neighbours(nothing_left, 4, generator(1))


def test_the_same_seed_gives_the_same_numbers(global_rng_watch: None) -> None:
    options = {"trials": 6, "candidates": 8, "batch_size": 2, "rest": "unknown", "neighbours": 3}
    assert bound(**options) == bound(**{**options, "generator": generator(2)})
