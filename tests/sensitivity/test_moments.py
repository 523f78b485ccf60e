import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from gradveil import Moments, measure
from gradveil.sensitivity import Exact
from tests.messages.compare import assert_same_bytes
from tests.sensitivity.oracles import assert_same_squares
from tests.zoo import named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

FIELDS = ("squared_values", "squared_sensitivities", "second_squares", "squared_example_values")


def make(seed: int = 0, count: float = 1, **changes: Any) -> Moments:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> dict[str, Tensor]:
        shapes = {"layer.weight": (2, 3), "scale": ()}
        return {
            name: torch.rand(shape, generator=generator, dtype=torch.float64)
            for name, shape in shapes.items()
        }

    fields = {field: draw() for field in FIELDS}
    return Moments(**{**fields, "input_size": 7, "count": count, **changes})


def tensors(moments: Moments) -> Iterator[tuple[str, dict[str, Tensor]]]:
    for field in FIELDS:
        if getattr(moments, field) is not None:
            yield field, getattr(moments, field)


def assert_same_moments(found: Moments, expected: Moments) -> None:
    """The same up to the rounding of a few sums."""
    for field, value in tensors(expected):
        assert_same_squares(getattr(found, field), value, tolerance=1e-13)
    assert [field for field, _ in tensors(found)] == [field for field, _ in tensors(expected)]
    assert found.count == pytest.approx(expected.count, rel=1e-15)
    assert (found.clip, found.input_size) == (expected.clip, expected.input_size)


class TestAdding:
    def test_is_the_mean_weighted_by_count(self) -> None:
        a, b = make(1, count=1), make(2, count=3)
        for field in FIELDS:
            for name, value in getattr(a + b, field).items():
                one, other = getattr(a, field)[name], getattr(b, field)[name]
                torch.testing.assert_close(value, (one + 3 * other) / 4)
        assert (a + b).count == 4

    def test_is_associative_and_commutative(self) -> None:
        a, b, c = make(1, count=1), make(2, count=2.5), make(3, count=4)
        for order in itertools.permutations((a, b, c)):
            assert_same_moments((order[0] + order[1]) + order[2], a + (b + c))

    def test_leaves_its_parts_alone(self) -> None:
        a, b = make(1), make(2)
        _ = a + b
        assert_same_moments(a, make(1))
        assert_same_moments(b, make(2))

    def test_a_data_set_streams_through(self) -> None:
        case = named("mlp")
        batches = [case.inputs(seed=seed) for seed in range(5)]
        found = Moments.average(measure(case.message(), batch, Exact()) for batch in batches)
        each = [measure(case.message(), batch, Exact()) for batch in batches]
        for field in FIELDS[:2]:
            parts = [getattr(moments, field) for moments in each]
            mean = {n: torch.stack([part[n] for part in parts]).mean(0) for n in parts[0]}
            assert_same_squares(getattr(found, field), mean, tolerance=1e-13)
        assert found.count == 5

    def test_sum_works_like_average(self) -> None:
        parts = [make(seed) for seed in range(3)]
        assert_same_moments(sum(parts), Moments.average(parts))

    def test_a_second_estimate_that_is_missing_stays_missing(self) -> None:
        assert (make(1) + make(2, second_squares=None)).second_squares is None

    def test_values_alone_stay_values_alone(self) -> None:
        values = Moments.of_values(make().squared_values, input_size=7)
        assert (make() + values).squared_sensitivities is None

    def test_squares_of_examples_that_are_missing_stay_missing(self) -> None:
        assert (make(1) + make(2, squared_example_values=None)).squared_example_values is None

    def test_refuses_other_names(self) -> None:
        other = make(
            squared_values={"scale": torch.ones(())},
            squared_sensitivities=None,
            squared_example_values=None,
            second_squares=None,
        )
        pattern = r"`other` should have the names of `self`. Found missing names \['layer.weight'\]"
        with pytest.raises(ValueError, match=pattern):
            make() + other

    def test_refuses_other_shapes(self) -> None:
        wrong = {**make().squared_values, "scale": torch.ones(1)}
        other = make(
            squared_values=wrong,
            squared_sensitivities=wrong,
            squared_example_values=None,
            second_squares=None,
        )
        with pytest.raises(ValueError, match=r"Found shape \(1,\) for `scale` instead of \(\)"):
            make() + other

    def test_refuses_another_clip(self) -> None:
        with pytest.raises(ValueError, match=r"`clip` should be the same.*Found None and 0.5"):
            make() + make(clip=0.5)

    def test_refuses_what_is_no_moments(self) -> None:
        with pytest.raises(TypeError, match="unsupported operand"):
            make() + 1

    def test_average_of_nothing(self) -> None:
        with pytest.raises(ValueError, match="Parameter `moments` should not be empty"):
            Moments.average([])


class TestMeaning:
    def test_size_counts_entries(self) -> None:
        assert make().size == 7

    def test_values_alone_have_no_sensitivities(self) -> None:
        moments = Moments.of_values({"a": torch.tensor([-2.0, 3.0])}, input_size=1)
        assert moments.squared_values["a"].tolist() == [4.0, 9.0]
        with pytest.raises(ValueError, match=r"`moments` should hold sensitivities.*measure\("):
            _ = moments.known_squared_sensitivities

    def test_squares_of_examples_must_be_measured(self) -> None:
        with pytest.raises(ValueError, match=r"Found none. Make them with.*examples=True"):
            _ = make(squared_example_values=None).known_squared_example_values

    def test_squares_of_examples_must_have_the_names_of_the_values(self) -> None:
        with pytest.raises(ValueError, match=r"`squared_example_values` should have the names"):
            make(squared_example_values={"other": torch.ones(())})

    def test_sensitivities_must_have_the_names_of_the_values(self) -> None:
        with pytest.raises(ValueError, match=r"`squared_sensitivities` should have the names"):
            make(squared_sensitivities={"other": torch.ones(())})


class TestClipping:
    """The Jacobian of the clamped message is the oracle in test_measure.py."""

    def test_the_same_clip_again_is_nothing_new(self) -> None:
        moments = make(clip=0.5)
        assert moments.clipped(0.5) is moments

    def test_refuses_a_mean_over_batches(self) -> None:
        """E[clip(g)²] is not known from E[g²]."""
        pattern = r"Found `clip = None` over 2 batches. Measure each batch with.*clip=0.5"
        with pytest.raises(ValueError, match=pattern):
            (make(1) + make(2)).clipped(0.5)

    def test_refuses_a_second_clip(self) -> None:
        with pytest.raises(ValueError, match=r"Found `clip = 0.5` over 1 batches"):
            make(clip=0.5).clipped(0.25)

    @pytest.mark.parametrize("clip", [-1.0, float("nan"), float("inf")])
    def test_refuses_a_threshold_that_is_none(self, clip: float) -> None:
        with pytest.raises(ValueError, match=f"`clip` should be.*Found `clip = {clip}`"):
            make().clipped(clip)

    def test_leaves_the_squares_of_examples_alone(self) -> None:
        """They stand for the loss's curvature, which clamping the message does not change."""
        moments = make()
        clipped = moments.clipped(0.5)
        assert_same_bytes(clipped.squared_example_values, moments.squared_example_values)

    def test_works_on_values_alone(self) -> None:
        moments = Moments.of_values({"a": torch.tensor([0.1, 3.0])}, input_size=1).clipped(1.0)
        assert moments.squared_values["a"].tolist() == pytest.approx([0.01, 1.0])
        assert moments.squared_sensitivities is None

    def test_measured_with_clip_they_average(self) -> None:
        case = named("mlp")
        each = [measure(case.message(), case.inputs(seed=s), Exact(), clip=0.05) for s in range(3)]
        mean = Moments.average(each)
        assert (mean.clip, mean.count) == (0.05, 3)
        assert mean.clipped(0.05) is mean
