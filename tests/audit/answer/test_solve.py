"""Goals are solved on curves whose answers are known in closed form."""

import math

import pytest

from gradveil.audit import Goal
from gradveil.audit._answer import REFINED, Wish, solve_wishes

from .made_up import KnownSearch, noise_axis


def logistic(strength):
    return 1 / (1 + math.exp(-4 * strength))


def cost(factor):
    return lambda strength: factor * 10 ** (strength / 2)


CURVES = {"cheap": (logistic, cost(0.1)), "dear": (logistic, cost(0.2))}
START = (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
AXES = [noise_axis("cheap", START), noise_axis("dear", START)]


def solved(*goals, curves=CURVES, later=1.0, half=0.0):
    search = KnownSearch(curves, later, half)
    search.measure("", [(axis, s) for axis in AXES for s in axis.start])
    wish = Wish("", tuple(map(Goal.parse, goals)))
    solve_wishes(search, AXES, [wish], can_judge=True)
    return wish, search


def threshold(error):
    """The strength at which so much is hidden."""
    return math.log(error / (1 - error)) / 4


def test_the_cheapest_setting_that_reaches_a_goal_on_leakage():
    found, _ = solved("error>=80%")
    best = found.best
    assert best.axis.name == "cheap"
    assert best.point.leaks[0].error.mean >= 0.8
    assert best.strength == pytest.approx(threshold(0.8), abs=0.3)
    assert found.equal == ()


def test_refinement_comes_nearer_to_the_answer_than_the_first_strengths():
    found, search = solved("error>=80%")
    weaker = [s for s in search.points(AXES[0]) if s < found.best.strength]
    assert found.best.strength - max(weaker) <= 0.25 + REFINED
    assert len(search.points(AXES[0])) > len(START)


def test_the_strongest_setting_within_a_goal_on_the_loss():
    found, _ = solved("loss<=+15%")
    assert found.best.axis.name == "cheap"
    assert found.best.point.extra_loss.mean <= 0.15
    assert found.best.strength >= 0.0


def test_intervals_make_a_setting_stronger():
    sure, _ = solved("error>=80%")
    unsure, _ = solved("error>=80%", half=0.1)
    assert unsure.best.strength > sure.best.strength
    assert unsure.best.point.leaks[0].error.low >= 0.8


def test_two_goals_that_exclude_each_other_are_answered_so():
    found, _ = solved("error>=99%", "loss<=+5%")
    assert found.best is None
    assert found.nearest.point.leaks[0].error.mean >= 0.99
    assert found.nearest.point.extra_loss.mean > 0.05
    assert found.within_cost.point.extra_loss.mean <= 0.05
    assert found.within_cost.point.leaks[0].error.mean < 0.99


def test_a_setting_that_fails_later_in_its_training_is_given_up_for_a_stronger_one():
    always, _ = solved("error>=80%")
    falling, _ = solved("error>=80%", later=0.85)
    assert falling.best.strength > always.best.strength
    assert len(falling.best.point.leaks) == 1 or all(
        leak.error.low >= 0.8 for leak in falling.best.point.leaks
    )


def test_a_weak_setting_that_looks_better_than_a_stronger_one_is_not_believed():
    def dented(strength):
        return 0.5 if strength == 1.0 else logistic(strength)

    found, _ = solved("error>=80%", curves={**CURVES, "cheap": (dented, cost(0.1))})
    assert found.best.axis.name == "dear" or found.best.strength > 1.0


def test_nothing_is_recommended_that_fails_later_everywhere():
    found, _ = solved("error>=80%", later=0.1)
    assert found.best is None


def test_a_goal_without_any_point_has_no_setting():
    found, _ = solved("identified<=10%")
    assert found.best is found.nearest is found.within_cost is None
