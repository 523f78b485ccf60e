import math
from itertools import pairwise

import pytest

from gradveil.audit._answer import hidden, next_strength
from gradveil.audit._settings import COPY, NOTHING
from gradveil.audit.measure._strengths import Axis
from gradveil.catalog import Spec

from .made_up import noise_axis, point


def curve(middle, width=0.4):
    """What is hidden, as a function of the strength: a step at `middle`."""
    return lambda strength: 1 / (1 + math.exp(-(strength - middle) / width))


@pytest.mark.parametrize("middle", [-2.0, -0.7, 0.0, 0.4, 2.5])
def test_strengths_cover_the_range_from_copies_to_nothing(middle):
    axis, hides = noise_axis(), curve(middle)
    done = {s: hides(s) for s in axis.start}
    while len(done) < 7 and (new := next_strength(axis, done)) is not None:
        assert new not in done
        done[new] = hides(new)
    values = sorted(done.values())
    assert len(done) <= 7
    assert values[0] <= 2.5 * COPY
    assert values[-1] >= NOTHING
    assert max(b - a for a, b in pairwise(values)) < 0.5


def test_a_defense_with_one_point_and_one_without_results_get_no_more():
    assert next_strength(Axis("sign", Spec("sign-compression")), {0.0: 0.5}) is None
    assert next_strength(noise_axis(), {}) is None


def test_where_attacks_cannot_judge_the_exact_attacker_decides():
    found = point("d", 5.0, 0.0, rate=1 / 32)
    assert hidden(found, can_judge=True) == 1.0
    assert hidden(found, can_judge=False) == pytest.approx(1.0)
    assert hidden(point("d", 5.0, 0.0, rate=1.0), can_judge=False) == 0.0
    assert hidden(point("d", 5.0, 0.0), can_judge=False) is None


def test_strengths_of_pruning_stay_ratios():
    axis = Axis("pruning", Spec("gradient-pruning", {"ratio": 0.5}), "ratio", (0.3, 1.0, 2.0))
    assert axis.amount(1.0) == 0.9
    assert axis.strength(0.9) == pytest.approx(1.0)
    assert axis.at(2.0) == "gradient-pruning(ratio=0.99)"
    done = dict.fromkeys((0.3, 1.0, 2.0), 0.5)
    while (new := next_strength(axis, done)) is not None:
        assert 0 < axis.amount(new) < 1
        done[new] = 0.5
    assert len(done) > 3
