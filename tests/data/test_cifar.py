from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from gradveil.data import Dataset, load_dataset

Arrays = tuple[np.ndarray, np.ndarray]
Helper = Callable[..., None]

CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 10)


def assert_is_photos(data: Dataset, photos: Arrays, repeats: int = 1) -> None:
    assert data.inputs.shape == (4 * repeats, 3, 32, 32)
    assert data.targets.tolist() == [3, 8, 8, 0] * repeats
    assert (data.mean, data.std, data.num_classes) == CIFAR10
    pixels = (data.to_pixels(data.inputs) * 255).round().to(torch.uint8)
    assert torch.equal(pixels, torch.tensor(np.concatenate([photos[0]] * repeats)))


def test_binary(tmp_path: Path, write_cifar_binary: Helper, photos: Arrays) -> None:
    write_cifar_binary(tmp_path)
    write_cifar_binary(tmp_path, "data_batch_1.bin")
    write_cifar_binary(tmp_path, "data_batch_2.bin")
    assert_is_photos(load_dataset(tmp_path, split="test"), photos)
    assert_is_photos(load_dataset(tmp_path, split="train"), photos, repeats=2)


@pytest.mark.parametrize("size", [0, 3072, 4 * 3073 - 1])
def test_truncated_binary(tmp_path: Path, size: int) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(ValueError, match=rf"records of 3073 bytes. Found {size} bytes"):
        load_dataset(tmp_path)


def test_binary_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes([77]) * 3073)
    with pytest.raises(ValueError, match=r"labels from 0 to 9. Found labels from 77 to 77"):
        load_dataset(tmp_path)
