"""Comparisons at equal loss: curves, what seeds leave open, and trainings that learn nothing."""

import math

import numpy as np
import pytest
import torch

from paper.measures import (
    NOT_REPRODUCED,
    NOT_TESTED,
    REPRODUCED,
    UNDECIDED,
    at_equal_loss,
    judge,
    learned_below,
)

GUESS = math.log(10)
LEVELS = (1e-4, 1e-3, 1e-2)


def test_curves_are_compared_at_losses_that_both_reach():
    def at(error: float, loss: float, level: float, name: str):
        unit = {(0, 0): torch.tensor([error, error], dtype=torch.float64)}
        return {(name, level): unit}, {(name, level): {(0, 0): torch.tensor([loss])}}

    points = [
        at(1.0, 1.0, 0.1, "a"),
        at(3.0, 3.0, 0.2, "a"),
        at(0.0, 0.0, 0.1, "b"),
        at(2.0, 4.0, 0.2, "b"),
    ]
    errors = {key: value for error, _ in points for key, value in error.items()}
    losses = {key: value for _, loss in points for key, value in loss.items()}
    found = at_equal_loss(errors, losses, "a", "b").units
    assert found[0, 0].tolist() == pytest.approx([1.0, 1.0])  # the mean of x - x/2 over [1, 3]
    apart = {**losses, **{("b", x): {(0, 0): torch.tensor([9.0])} for x in (0.1, 0.2)}}
    assert at_equal_loss(errors, apart, "a", "b").units == {}


def test_losses_of_seeds_that_not_all_levels_have_do_not_shift_a_curve():
    """Seed 1 trains worse by 1 nat, and one level of one defense alone has it."""
    one, x = (0, 0), torch.tensor([1.0])
    errors = {(n, lvl): {one: x * lvl} for n in "ab" for lvl in (1.0, 2.0)}
    losses = {(n, lvl): {one: x * lvl} for n in "ab" for lvl in (1.0, 2.0)}
    losses["a", 1.0] = {one: x, (0, 1): x + 1.0}
    (difference,) = at_equal_loss(errors, losses, "a", "b").units.values()
    assert torch.allclose(difference, torch.zeros(()).to(difference))


def planted(generator, losses, errors, shift=0.0, scatter=0.004, offset=0.01):
    """Six seeds and 16 photos of two defenses: losses and errors by level, seeds shared."""
    shared = offset * generator.standard_normal(6)

    def seeds(loss):
        drawn = loss + shared + scatter * generator.standard_normal(6)
        return {(0, s): torch.tensor([x]) for s, x in enumerate(drawn)}

    photos = 0.2 * generator.standard_normal(16)

    def units(error):
        drawn = error + photos + 0.05 * generator.standard_normal(16)
        return {(k, 0): torch.tensor([x]) for k, x in enumerate(drawn)}

    names = {"optimal": shift, "classical": 0.0}
    return (
        {
            (n, x): units(e + more)
            for n, more in names.items()
            for x, e in zip(LEVELS, errors, strict=True)
        },
        {("no-defense", None): seeds(2.0)}
        | {(n, x): seeds(loss) for n in names for x, loss in zip(LEVELS, losses, strict=True)},
    )


def verdicts(losses, errors, draws=40, **more):
    generator = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        by_error, by_loss = planted(generator, losses, errors, **more)
        result = at_equal_loss(by_error, by_loss, "optimal", "classical", learned_below(by_loss))
        found.append(judge(result.units, None, result.half_width).verdict)
    return found


def test_twins_that_learn_nothing_are_not_compared():
    found = verdicts([GUESS, GUESS, GUESS], [0.5, 0.9, 1.3])
    assert set(found) == {NOT_TESTED}


def test_one_level_that_learned_is_no_curve():
    assert set(verdicts([2.05, GUESS, GUESS], [0.5, 0.9, 1.3])) == {NOT_TESTED}


@pytest.mark.slow
def test_alike_twins_are_not_told_apart_because_some_levels_learn_nothing():
    """Six of 120 would be wrong by chance; it was two in three."""
    found = verdicts([2.0, 2.1, GUESS], [0.5, 0.9, 1.3], draws=120)
    assert found.count(REPRODUCED) + found.count(NOT_REPRODUCED) <= 12


def test_a_difference_is_found_where_both_learn():
    found = verdicts([2.0, 2.1, GUESS], [0.5, 0.9, 1.3], shift=0.3)
    assert found.count(REPRODUCED) >= 38


def test_what_seeds_leave_open_is_the_jackknife_of_the_mean_difference():
    """Against an own computation: numpy's means and interpolation, seed by seed left out."""
    generator = np.random.default_rng(3)
    errors, losses = planted(generator, [1.0, 1.5, 2.0], [0.2, 0.6, 0.7], scatter=0.1)

    def mean_difference(seeds):
        curves = []
        for name in ("optimal", "classical"):
            x = [np.mean([float(losses[name, k][0, s]) for s in seeds]) for k in LEVELS]
            y = [np.mean([float(v) for v in errors[name, k].values()]) for k in LEVELS]
            order = np.argsort(x)
            curves.append((np.array(x)[order], np.array(y)[order]))
        (x, y), (z, w) = curves
        grid = np.linspace(max(x[0], z[0]), min(x[-1], z[-1]), 33)
        return np.mean(np.interp(grid, x, y) - np.interp(grid, z, w))

    left = [mean_difference([s for s in range(6) if s != out]) for out in range(6)]
    error = math.sqrt(5 / 6 * sum((d - np.mean(left)) ** 2 for d in left))
    found = at_equal_loss(errors, losses, "optimal", "classical")
    assert found.half_width == pytest.approx(2.5706 * error, rel=1e-4)
    assert float(torch.cat([*found.units.values()]).mean()) == pytest.approx(
        mean_difference(range(6))
    )


@pytest.mark.slow
def test_the_interval_holds_no_difference_as_often_as_it_says():
    """Losses of alike twins scatter by as much as the levels differ: 5 % of verdicts are wrong.

    With losses that count as known it was more than a third.
    """
    generator = np.random.default_rng(1)
    wrong = known = 0
    for _ in range(200):
        errors, losses = planted(generator, [1.0, 1.5, 2.0], [0.2, 0.6, 1.0], scatter=0.15)
        found = at_equal_loss(errors, losses, "optimal", "classical")
        wrong += judge(found.units, None, found.half_width).verdict in (REPRODUCED, NOT_REPRODUCED)
        known += judge(found.units).verdict in (REPRODUCED, NOT_REPRODUCED)
    assert wrong <= 24
    assert known > 60


def test_half_widths_add_as_independent_errors():
    units = {(k, 0): torch.tensor([x]) for k, x in enumerate([0.8, 1.0, 1.2, 0.9, 1.1, 1.0, 1.0])}
    alone, wider = judge(units), judge(units, None, 0.3)
    assert wider.mean - wider.low == pytest.approx(math.hypot(alone.mean - alone.low, 0.3))
    assert wider.high - wider.mean == pytest.approx(math.hypot(alone.high - alone.mean, 0.3))
    nothing = judge(units, None, math.inf)
    assert (nothing.verdict, nothing.low, nothing.high) == (UNDECIDED, None, None)
    assert nothing.mean == pytest.approx(alone.mean)


def test_one_seed_that_decides_whether_curves_meet_leaves_all_open():
    one = torch.ones(1)
    errors = {(n, lvl): {(0, 0): one, (4, 0): one} for n in "ab" for lvl in (1.0, 2.0)}
    losses = {("a", lvl): {(0, s): one * lvl for s in range(3)} for lvl in (1.0, 2.0)}
    losses["b", 1.0] = {(0, 0): 2.2 * one, (0, 1): 2.2 * one, (0, 2): 0.1 * one}
    losses["b", 2.0] = {(0, s): 3.0 * one for s in range(3)}
    found = at_equal_loss(errors, losses, "a", "b")
    assert found.units
    assert found.half_width == math.inf


def test_one_seed_of_losses_decides_nothing():
    errors, losses = planted(np.random.default_rng(0), [1.0, 1.5, 2.0], [0.2, 0.6, 1.0], shift=0.5)
    single = {d: {(0, 0): own[0, 0]} for d, own in losses.items()}
    found = at_equal_loss(errors, single, "optimal", "classical")
    assert found.units
    assert judge(found.units, None, found.half_width).verdict == UNDECIDED


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_level_whose_loss_is_no_number_is_left_out(level, bad):
    errors, losses = planted(np.random.default_rng(0), [1.0, 1.5, 2.0], [0.2, 0.6, 1.0])
    broken = {**losses, ("optimal", level): {(0, s): torch.tensor([bad]) for s in range(6)}}
    without = {d: own for d, own in losses.items() if d != ("optimal", level)}
    found, wanted = (at_equal_loss(errors, x, "optimal", "classical") for x in (broken, without))
    assert found.half_width == wanted.half_width
    assert found.units.keys() == wanted.units.keys()


def test_what_counts_as_learned():
    losses = {("no-defense", None): {(0, 0): torch.tensor([1.3]), (0, 1): torch.tensor([1.3])}}
    assert learned_below(losses) == pytest.approx(GUESS - 0.1 * (GUESS - 1.3))
    assert learned_below({}) == GUESS
    for loss in (9.0, math.nan, math.inf):
        assert learned_below({("no-defense", None): {(0, 0): torch.tensor([loss])}}) == GUESS
