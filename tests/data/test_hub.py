import sys
from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gradveil.data import load_dataset

Arrays = tuple[np.ndarray, np.ndarray]
Helper = Callable[..., None]


class FakeTable:
    """The part of ``datasets.Dataset`` that the reader uses."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self.columns, self.features = columns, features

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]

    def select(self, indices: Iterable[int]) -> "FakeTable":
        chosen = list(indices)
        columns = {name: [values[i] for i in chosen] for name, values in self.columns.items()}
        return FakeTable(columns, self.features)


class FakeHub(ModuleType):
    def __init__(self, table: FakeTable) -> None:
        super().__init__("datasets")
        self.table = table
        self.calls: list[tuple[str, str]] = []

    def load_dataset(self, name: str, split: str) -> FakeTable:
        self.calls.append((name, split))
        return self.table


def install(monkeypatch: pytest.MonkeyPatch, images: list[Any], **features: Any) -> FakeHub:
    columns = {"img": images, "label": list(range(len(images)))}
    hub = FakeHub(FakeTable(columns, {"img": None, "label": None} | features))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    return hub


def test_colour(monkeypatch: pytest.MonkeyPatch, photos: Arrays, assert_pixels: Helper) -> None:
    images = [Image.fromarray(image.transpose(1, 2, 0)) for image in photos[0]]
    hub = install(monkeypatch, images, label=SimpleNamespace(num_classes=10))
    data = load_dataset("hf:uoft-cs/cifar10", limit=3)
    assert hub.calls == [("uoft-cs/cifar10", "test")]
    assert (data.targets.tolist(), data.num_classes) == ([0, 1, 2], 10)
    assert data.mean == (0.4914, 0.4822, 0.4465)
    assert_pixels(data.to_pixels(data.inputs), photos[0][:3])


def test_grey(monkeypatch: pytest.MonkeyPatch, digits: Arrays, assert_pixels: Helper) -> None:
    hub = install(monkeypatch, [Image.fromarray(image) for image in digits[0]])
    data = load_dataset("hf:someone/letters", split="train[:4]")
    assert hub.calls == [("someone/letters", "train[:4]")]
    assert (data.num_classes, data.mean, data.std) == (4, (0.0,), (1.0,))
    assert_pixels(data.inputs[:, 0], digits[0])


def test_images_of_several_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [Image.new("RGB", (4, 4)), Image.new("RGB", (5, 4))])
    with pytest.raises(ValueError, match=r"one size and mode. Found 2 different shapes"):
        load_dataset("hf:someone/photos")


def test_palettes_become_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [Image.new("P", (4, 4))])
    assert load_dataset("hf:someone/icons").inputs.shape == (1, 3, 4, 4)


def test_missing_column(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = install(monkeypatch, [np.zeros(3)])
    del hub.table.features["img"]
    with pytest.raises(ValueError, match=r"named image or img. Found label"):
        load_dataset("hf:someone/tables")


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "gradveil\[data\]"$'):
        load_dataset("hf:mnist")
