"""Data sets, files and models by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradveil import load_dataset
from gradveil.data import Dataset
from gradveil.models import MLP, ConvNet, PatchTransformer, SimpleConvNet, build_model
from tests.wrong_arguments.cases import HUGE, NAN, Wrong, assert_refused, table

TARGETS = torch.tensor([0, 1, 1])


def dataset(**changes: Any) -> Any:
    options: dict[str, Any] = {
        "inputs": torch.zeros(3, 1, 2, 2), "targets": TARGETS, "mean": (0.5,), "std": (0.25,),
        "num_classes": 2, "name": "toy", **changes,
    }  # fmt: skip
    return Dataset(**options)


def made(**changes: Any) -> Callable[[], Any]:
    return lambda: dataset(**changes)


@table(
    (made(inputs=[0.0]), "inputs", "list"),
    (made(inputs=torch.zeros(3, dtype=torch.int64)), "inputs", "torch.int64"),
    (made(inputs=torch.zeros(3)), "inputs", "(3,)"),
    (made(targets=[0, 1, 1]), "targets", "list"),
    (made(targets=TARGETS.int()), "targets", "torch.int32"),
    (made(targets=TARGETS[:2]), "toy", "2 labels"),
    (made(targets=TARGETS - 1), "toy", "from -1 to 0"),
    (made(targets=TARGETS + 2**40), "toy", str(2**40)),
    (made(num_classes=0), "num_classes", "0"),
    (made(num_classes=2.0), "num_classes", "2.0"),
    (made(mean=(NAN,)), "mean", "nan"),
    (made(mean=()), "mean", "()"),
    (made(mean=0.5), "mean", "0.5"),
    (made(mean=("a",)), "mean", "('a',)"),
    (made(std=(0.0,)), "std", "(0.0,)"),
    (made(std=(NAN,)), "std", "nan"),
    (made(std=(1.0, 1.0)), "std", "(1.0, 1.0)"),
    (made(name=3), "name", "3"),
    (lambda: dataset().batch(0, 4), "size", "size=4"),
    (lambda: dataset().batch(-1, 1), "start", "start=-1"),
    (lambda: dataset().batch("0", 1), "start", "'0'"),
    (lambda: dataset().batch(0, 1.5), "size", "1.5"),
    (lambda: dataset().to("abacus"), "device", "'abacus'"),
    (lambda: dataset().to("meta"), "device", "'meta'"),
    (lambda: load_dataset(None), "source", "None"),
    (lambda: load_dataset(3), "source", "3"),
    (lambda: load_dataset(""), "source", "''"),
    (lambda: load_dataset("mnits"), "source", "'mnits'"),
    (lambda: load_dataset("a\0b"), "source", "a\\x00b"),
    (lambda: load_dataset("x" * 5000), "source", "too long"),
    (lambda: load_dataset("missing.npz"), "source", "does not exist"),
    (lambda: load_dataset("mnist", limit=0), "limit", "0"),
    (lambda: load_dataset("mnist", limit="ten"), "limit", "'ten'"),
    (lambda: load_dataset("mnist", split="train"), "split", "'train'"),
    (lambda: load_dataset("mnist", split=1), "split", "1"),
    (lambda: load_dataset("mnist", normalization="x"), "normalization", "'x'"),
    (lambda: load_dataset("mnist", normalization=(0.5, 0.5)), "normalization", "0.5"),
    (lambda: load_dataset("mnist", normalization=((0.5,),)), "normalization", "tuple of 1"),
    (lambda: load_dataset("mnist", normalization=((NAN,), (1.0,))), "normalization", "nan"),
    (lambda: load_dataset("mnist", normalization=((0.5,), (-1.0,))), "normalization", "-1.0"),
)
def test_data(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)


IMAGES, LABELS = np.zeros((4, 8, 8), dtype=np.uint8), np.array([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("arrays", "name", "found"),
    [
        ({"a": IMAGES}, "images", "none"),
        ({"images": IMAGES, "labels": LABELS.astype(float)}, "labels", "float64"),
        ({"images": IMAGES, "labels": LABELS[:2]}, "file", "2 labels"),
        ({"images": IMAGES, "labels": LABELS - 100}, "file", "-100"),
        ({"images": IMAGES, "labels": LABELS + 2**40}, "num_classes", str(2**40 + 3)),
        ({"images": IMAGES, "labels": LABELS.astype(np.uint64) + 2**63}, "labels", "uint64"),
        ({"images": IMAGES.astype(complex), "labels": LABELS}, "images", "complex128"),
        ({"images": IMAGES.astype(np.int32), "labels": LABELS}, "images", "int32"),
        ({"images": IMAGES[:, 0, 0], "labels": LABELS}, "images", "(4,)"),
        ({"x": np.full((4, 2), NAN), "y": LABELS}, "x", "NaN"),
        ({"x": np.zeros((4, 2)), "y": LABELS, "num_classes": 0}, "num_classes", "0"),
        ({"x": np.zeros((4, 2)), "y": LABELS, "num_classes": 2.5}, "num_classes", "2.5"),
        ({"x": np.zeros((4, 2)), "y": LABELS, "num_classes": [1, 2]}, "num_classes", "[1, 2]"),
        ({"x": np.zeros((4, 2)), "y": LABELS, "mean": [0.5]}, "std", "only one"),
        ({"x": np.zeros((4, 2)), "y": LABELS, "mean": ["a"], "std": [1.0]}, "mean", "['a']"),
        ({"x": np.zeros((4, 2)), "y": LABELS, "mean": [NAN], "std": [1.0]}, "mean", "nan"),
        ({"x": np.zeros((4, 2)), "y": np.array([{}] * 4)}, "", "allow_pickle"),
    ],
)
def test_files(arrays: dict[str, Any], name: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="should") as caught:
        load_dataset(path)
    assert f"`{name}" in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize("size", [0, 10, 200, 400])
def test_files_that_are_cut_off(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"File `.*file.npz` should be an .npz archive"):
        load_dataset(path)


@table(
    (lambda: ConvNet(width=0), "width", "0"),
    (lambda: ConvNet(width=1.5), "width", "1.5"),
    (lambda: ConvNet(num_classes=0), "num_classes", "0"),
    (lambda: ConvNet(num_channels=-1), "num_channels", "-1"),
    (lambda: MLP([4, 2], activation="step"), "activation", "'step'"),
    (lambda: MLP([4, 2], activation=None), "activation", "None"),
    (lambda: SimpleConvNet(num_classes=0), "num_classes", "0"),
    (lambda: SimpleConvNet(num_channels="3"), "num_channels", "'3'"),
    (lambda: MLP([4]), "sizes", "[4]"),
    (lambda: MLP(4), "sizes", "4"),
    (lambda: MLP([4, 2.5]), "sizes", "2.5"),
    (lambda: MLP([4, 0, 2]), "sizes", "[4, 0, 2]"),
    (lambda: PatchTransformer(width=0), "width", "0"),
    (lambda: PatchTransformer(heads=3), "heads", "heads = 3"),
    (lambda: PatchTransformer(patch=64), "patch", "patch = 64"),
    (lambda: build_model(None), "spec", "None"),
    (lambda: build_model("resnet"), "resnet", "A model"),
    (lambda: build_model("mlp", wide=3), "options", "'wide': 3"),
    (lambda: build_model("mlp"), "options", "'sizes'"),
    (lambda: build_model("conv-net", width=0), "width", "0"),
    (lambda: build_model("simple-conv-net", seed=-1), "seed", "-1"),
    (lambda: build_model("simple-conv-net", seed=2**70), "seed", str(2**70)),
    (lambda: build_model("simple-conv-net", seed=HUGE), "seed", "1329 bits"),
    (lambda: build_model("simple-conv-net", seed="a"), "seed", "'a'"),
)
def test_models(case: Wrong, empty: Path) -> None:
    assert_refused(case, empty)
