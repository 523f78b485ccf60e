import math

import pytest
import torch

from gradveil.attacks._likelihood import Doubt, doubt_between
from gradveil.mechanisms import Mechanism, RoundingMechanism

LIKE = {"w": torch.zeros(4), "b": torch.zeros(2)}


def levels(*numbers: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(numbers[:4]), "b": torch.tensor(numbers[4:])}


def test_equal_plans_leave_no_doubt_on_levels() -> None:
    mechanism = Mechanism(levels(1, 2, 3, 4, 5, 0))
    nothing = {"w": 0.0, "b": 0.0}
    assert doubt_between(mechanism, mechanism, LIKE) == Doubt(nothing, nothing, 1.0, 0.0)
    assert not doubt_between(mechanism, mechanism, LIKE).levels_differ
    assert doubt_between(mechanism, Mechanism(levels(1, 2, 3, 4, 5.1, 0)), LIKE).levels_differ


def test_levels_are_compared_by_the_logarithms_of_variances() -> None:
    one, other = levels(1, 2, 3, 4, 5, 0), levels(2, 2, 3, 8, 0, 1)
    kinds: tuple[type[Mechanism] | type[RoundingMechanism], ...] = (Mechanism, RoundingMechanism)
    for kind in kinds:
        found = doubt_between(kind(one), kind(other), LIKE)  # type: ignore[arg-type]
        expected = 2 * math.log(2)
        assert found.levels == pytest.approx({"w": (expected / 2) ** 2, "b": 0.0})
        assert found.shared == pytest.approx({"w": (expected / 2) ** 2, "b": 0.0})


def test_masks_are_compared_in_both_directions() -> None:
    one, other = levels(1, 1, 1, 0, 0, 0), levels(1, 1, 0, 1, 0, 0)
    found = doubt_between(Mechanism(0.0, one), Mechanism(0.0, other), LIKE)
    assert (found.kept, found.pruned) == pytest.approx((2.5 / 4, 1.5 / 4))
    sure = doubt_between(Mechanism(0.0, one), Mechanism(0.0, one), LIKE)
    assert (sure.kept, sure.pruned) == pytest.approx((3.5 / 4, 0.5 / 4))


def test_the_mean_of_doubts() -> None:
    one = Doubt({"w": 0.2, "b": 0.0}, {"w": 0.3, "b": 0.0}, 0.9, 0.1)
    other = Doubt({"w": 0.4, "b": 0.0}, {"w": 0.1, "b": 0.0}, 0.7, 0.3)
    found = Doubt.mean([one, other])
    assert found.levels == pytest.approx({"w": 0.3, "b": 0.0})
    assert found.shared == pytest.approx({"w": 0.2, "b": 0.0})
    assert (found.kept, found.pruned) == pytest.approx((0.8, 0.2))
