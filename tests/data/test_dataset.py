import dataclasses
from typing import Any

import pytest
import torch

from gradveil.data import Dataset


def make(**changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "inputs": torch.arange(24.0).reshape(3, 2, 2, 2),
        "targets": torch.tensor([0, 1, 1]),
        "mean": (0.5, 0.25),
        "std": (0.25, 0.5),
        "num_classes": 2,
        "name": "toy",
    }
    return Dataset(**(fields | changes))


def test_length() -> None:
    assert len(make()) == 3


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().name = "other"  # type: ignore[misc]


def test_batch_counts_from_zero() -> None:
    data = make()
    inputs, targets = data.batch(start=1, size=2)
    assert torch.equal(inputs, data.inputs[1:])
    assert targets.tolist() == [1, 1]


@pytest.mark.parametrize(("start", "size"), [(-1, 1), (0, 0), (3, 1), (2, 2)])
def test_batch_refuses_what_is_not_there(start: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"examples 0 to 2.*Found `start="):
        make().batch(start, size)


def test_pixels_are_per_channel() -> None:
    pixels = make().to_pixels(torch.ones(2, 2, 2))
    torch.testing.assert_close(pixels[0], torch.full((2, 2), 0.75))
    torch.testing.assert_close(pixels[1], torch.full((2, 2), 0.75))
    assert make().to_pixels(torch.ones(5, 3, 2, 2, 2, dtype=torch.float64)).dtype == torch.float64


def test_pixels_of_the_range_are_zero_and_one() -> None:
    data = make()
    low, high = data.range
    assert low.shape == high.shape == (2, 1, 1)
    torch.testing.assert_close(data.to_pixels(low), torch.zeros(2, 1, 1))
    torch.testing.assert_close(data.to_pixels(high), torch.ones(2, 1, 1))


def test_range_broadcasts_with_a_table() -> None:
    data = make(inputs=torch.zeros(3, 2))
    assert data.inputs.clamp(*data.range).shape == (3, 2)


def test_repr_is_short() -> None:
    assert "tensor" not in repr(make())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(3, 2, dtype=torch.uint8)}, "should hold floats"),
        ({"inputs": torch.zeros(3)}, r"shape \(N, ...\)"),
        ({"targets": torch.zeros(3, dtype=torch.int32)}, "class label \\(int64\\).*torch.int32"),
        ({"targets": torch.full((3, 1), torch.nan)}, "finite numbers"),
        ({"targets": torch.tensor([0, 1])}, "Found 3 inputs and 2 labels"),
        ({"inputs": torch.zeros(0, 2), "targets": torch.tensor([]).long()}, "at least one input"),
        ({"targets": torch.tensor([0, 1, 2])}, "from 0 to 1.*from 0 to 2"),
        ({"targets": torch.tensor([0, 1, -1])}, "Found labels from -1 to 1"),
        ({"mean": (0.1, 0.2, 0.3)}, "each of the 2 channels"),
        ({"std": (1.0, 0.0)}, "should be positive"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)
