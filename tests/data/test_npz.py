from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradveil.data import Normalization, load_dataset

Arrays = tuple[np.ndarray, np.ndarray]
Helper = Callable[..., None]


def save(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("keys", [("images", "labels"), ("inputs", "targets"), ("x", "y")])
def test_names_of_arrays(
    tmp_path: Path, digits: Arrays, keys: tuple[str, str], assert_pixels: Helper
) -> None:
    data = load_dataset(save(tmp_path, **dict(zip(keys, digits, strict=True)), other=1))
    assert data.inputs.shape == (4, 1, 28, 28)
    assert (data.targets.tolist(), data.num_classes, data.name) == ([7, 2, 1, 0], 8, "own")
    assert_pixels(data.inputs[:, 0], digits[0])
    assert data.inputs.max() <= 1


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_layouts(
    tmp_path: Path, photos: Arrays, axes: tuple[int, ...], assert_pixels: Helper
) -> None:
    images, labels = photos
    data = load_dataset(save(tmp_path, images=images.transpose(axes), labels=labels))
    assert_pixels(data.inputs, images)
    assert (data.mean, data.std) == ((0.0,), (1.0,))


def test_one_channel_last(tmp_path: Path, digits: Arrays, assert_pixels: Helper) -> None:
    data = load_dataset(save(tmp_path, images=digits[0][..., None], labels=digits[1]))
    assert_pixels(data.inputs[:, 0], digits[0])


def test_table_of_bytes(tmp_path: Path, digits: Arrays, assert_pixels: Helper) -> None:
    table = digits[0].reshape(4, -1)
    data = load_dataset(save(tmp_path, x=table, y=digits[1]), normalization="mnist")
    assert data.inputs.shape == (4, 784)
    assert_pixels(data.to_pixels(data.inputs), table)


@pytest.mark.parametrize("normalization", ["cifar10", None])
def test_normalization(
    tmp_path: Path, photos: Arrays, normalization: str | None, assert_pixels: Helper
) -> None:
    """By name, or as the file says."""
    images, labels = photos
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    stored = {} if normalization else {"mean": mean, "std": std, "num_classes": 10}
    path = save(tmp_path, images=images, labels=labels, **stored)
    data = load_dataset(path, normalization=normalization)
    assert (data.mean, data.std) == (mean, std)
    assert data.num_classes == (9 if normalization else 10)
    expected = (images[2, 1, 5, 7] / 255 - mean[1]) / std[1]
    assert data.inputs[2, 1, 5, 7].item() == pytest.approx(expected, abs=1e-6)
    assert_pixels(data.to_pixels(data.inputs), images)


def test_normalization_of_other_channels_is_refused(tmp_path: Path, digits: Arrays) -> None:
    path = save(tmp_path, images=digits[0], labels=digits[1])
    with pytest.raises(ValueError, match=r"each of the 1 channels of.*Found `mean=\(0.4914"):
        load_dataset(path, normalization="cifar10")


def test_mean_without_std_is_refused(tmp_path: Path, digits: Arrays) -> None:
    path = save(tmp_path, images=digits[0], labels=digits[1], mean=[0.5])
    with pytest.raises(ValueError, match=r"both `mean` and `std`"):
        load_dataset(path)


@pytest.mark.parametrize("shape", [(3, 5), (3, 2, 4), (3, 4, 4, 1), (3, 1, 2, 2, 2)])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2"])
def test_floats_are_taken_as_they_are(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(dtype)
    data = load_dataset(save(tmp_path, x=values, y=[0, 1, 1]))
    assert torch.equal(data.inputs, torch.tensor(values.astype(np.float32)))
    low, high = data.range
    assert (data.inputs >= low - 1e-6).all()
    assert (data.inputs <= high + 1e-6).all()
    pixels = data.to_pixels(data.inputs)
    assert pixels.min().item() == pytest.approx(0, abs=1e-6)
    assert pixels.max().item() == pytest.approx(1, abs=1e-6)


def test_features_of_a_table_have_their_own_ranges(tmp_path: Path) -> None:
    table = np.array([[0.0, -5, 3], [10, 5, 3], [4, 0, 3]])
    low, high = load_dataset(save(tmp_path, x=table, y=[0, 1, 0])).range
    torch.testing.assert_close(low, torch.tensor([0.0, -5, 3]))
    torch.testing.assert_close(high, torch.tensor([10.0, 5, 4]))  # a constant gets width 1


def test_floats_within_zero_and_one_are_pixels(tmp_path: Path) -> None:
    data = load_dataset(save(tmp_path, x=np.full((2, 1, 4, 4), 0.5), y=[0, 1]))
    assert (data.mean, data.std) == ((0.0,), (1.0,))


def test_normalization_of_floats_is_a_statement(tmp_path: Path) -> None:
    path = save(tmp_path, x=np.full((2, 1, 4, 4), 2.0), y=[0, 1])
    data = load_dataset(path, normalization=Normalization((0.5,), (0.25,)))
    assert (data.inputs == 2).all()
    assert (data.to_pixels(data.inputs) == 1).all()


def test_labels_in_a_column(tmp_path: Path) -> None:
    data = load_dataset(save(tmp_path, x=np.zeros((3, 2)), y=np.array([[1], [0], [2]])))
    assert data.targets.tolist() == [1, 0, 2]


PIXELS = np.zeros((2, 4, 4), dtype=np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": PIXELS, "labels": [0, 1]}, "`x` and `y`. Found `labels`"),
        ({"images": PIXELS, "y": [0, 1]}, "Rename its arrays"),
        ({"x": PIXELS.astype(int), "y": [0, 1]}, r"uint8 pixels or floats.*Found int64 of shape"),
        ({"x": np.zeros(2), "y": [0, 1]}, r"Found float64 of shape \(2,\)"),
        ({"x": np.array([[np.nan], [0]]), "y": [0, 1]}, "finite numbers"),
        ({"x": np.array([[1e300], [0]]), "y": [0, 1]}, "finite numbers"),
        ({"x": np.zeros((2, 7, 4, 5), dtype=np.uint8), "y": [0, 1]}, r"shape \(2, 7, 4, 5\)"),
        ({"x": np.zeros((2, 1, 1, 4, 5), dtype=np.uint8), "y": [0, 1]}, "Transpose it"),
        ({"images": PIXELS, "labels": [0.0, 1.0]}, "name the array `targets`"),
        ({"tokens": [[0, 1], [1, 2]], "labels": [0.0, 1.0]}, "name the array `targets`"),
        ({"x": PIXELS, "y": np.eye(2, dtype=int)}, "For one-hot labels"),
        ({"x": PIXELS, "y": [0]}, "`own` should hold one label per input.*Found 2 inputs and 1"),
        ({"x": PIXELS[:0], "y": np.zeros(0, dtype=int)}, "at least one input"),
        ({"x": PIXELS, "y": [0, -1]}, "Found labels from -1 to 0"),
        ({"x": np.array([[{}], [{}]]), "y": [0, 1]}, "no objects, which could run code"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_refuses(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_dataset(save(tmp_path, **arrays))


def test_refuses_damaged_files(tmp_path: Path) -> None:
    path = save(tmp_path, x=PIXELS, y=[0, 1])
    content = path.read_bytes()
    for damaged in (b"", b"no archive", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"should be an .npz archive of numerical arrays"):
            load_dataset(path)


@pytest.mark.parametrize(
    ("targets", "shape", "task", "count"),
    [
        (np.array([0.5, 1.0]), (2,), "numbers", 1),
        (np.zeros((2, 3), dtype=np.float16), (2, 3), "numbers", 3),
        (np.array([[True, False], [True, True]]), (2, 2), "numbers", 2),
        (np.array([[0, 2, 1], [1, 1, 1]]), (2, 3), "labels", 3),
        (np.zeros((2, 4, 5), dtype=np.uint8), (2, 4, 5), "labels", 1),
        (np.array([[1], [0]]), (2,), "classification", 2),
    ],
)
def test_targets_of_every_task(tmp_path, targets, shape, task, count):
    data = load_dataset(save(tmp_path, inputs=np.zeros((2, 4)), targets=targets))
    assert tuple(data.targets.shape) == shape
    assert data.targets.dtype == (torch.float32 if task == "numbers" else torch.int64)
    assert (data.task, data.num_classes, data.tokens) == (task, count, False)


def test_tokens_and_their_own_targets(tmp_path: Path) -> None:
    ids = np.array([[1, 5, 2], [0, 3, 3]], dtype=np.int32)
    data = load_dataset(save(tmp_path, tokens=ids))
    assert data.tokens
    assert torch.equal(data.inputs, data.targets)
    data = load_dataset(save(tmp_path, tokens=ids, labels=[1, 0]))
    assert (data.inputs.tolist(), data.task) == (ids.tolist(), "classification")


def test_columns_of_a_table(tmp_path: Path) -> None:
    rows = np.array([[0.5, 1.0, 0.0], [0.1, 0.0, 1.0]])
    data = load_dataset(save(tmp_path, x=rows, y=[0, 1], columns=[0, 1, 1]))
    assert data.layout is not None
    assert (data.layout.continuous, data.layout.categorical) == ((0,), ((1, 2),))
    with pytest.raises(ValueError, match="of the layout"):
        load_dataset(save(tmp_path, x=rows, y=[0, 1], columns=[0, 1]))
    with pytest.raises(ValueError, match=r"`columns`.*number of a column"):
        load_dataset(save(tmp_path, x=rows, y=[0, 1], columns=[0.5, 1, 1]))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"tokens": [[0, -1]]}, "integers from 0"),
        ({"tokens": [[0.5, 1.0]]}, r"ids of tokens.*float64"),
        ({"x": np.zeros((2, 3), dtype=int), "y": [0, 1]}, "name an array of token ids `tokens`"),
        ({"x": np.zeros((2, 3)), "y": ["a", "b"]}, "For names of classes, save their numbers"),
    ],
)
def test_refuses_other_tokens_and_targets(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        load_dataset(save(tmp_path, **arrays))
