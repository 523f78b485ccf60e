"""Small data sets in their official layouts."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.fixture
def digits() -> Arrays:
    """Four images of 28x28 and their labels."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (4, 28, 28), dtype=np.uint8), np.uint8([7, 2, 1, 0])


@pytest.fixture
def photos() -> Arrays:
    """Four images of 3x32x32 and their labels."""
    random = np.random.default_rng(1)
    return random.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8), np.uint8([3, 8, 8, 0])


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.fixture
def write_idx(digits: Arrays) -> Callable[..., None]:
    def write(folder: Path, prefix: str = "t10k", compress: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for kind, array in zip(("images-idx3", "labels-idx1"), digits, strict=True):
            content = idx_bytes(array)
            name = f"{prefix}-{kind}-ubyte"
            if compress:
                name, content = f"{name}.gz", gzip.compress(content)
            (folder / name).write_bytes(content)

    return write


@pytest.fixture
def write_cifar_binary(photos: Arrays) -> Callable[..., None]:
    def write(folder: Path, name: str = "test_batch.bin") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        images, labels = photos
        records = np.concatenate([labels[:, None], images.reshape(4, -1)], axis=1)
        (folder / name).write_bytes(records.tobytes())

    return write


@pytest.fixture
def write_cifar_python(photos: Arrays) -> Callable[..., None]:
    def write(folder: Path, name: str = "test_batch", protocol: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        images, labels = photos
        batch = {
            b"batch_label": b"testing batch 1 of 1",
            b"labels": labels.tolist(),
            b"data": images.reshape(4, -1),
            b"filenames": [b"a.png", b"b.png", b"c.png", b"d.png"],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))

    return write


@pytest.fixture
def assert_pixels() -> Callable[[Tensor, np.ndarray], None]:
    """Check that the first, in [0, 1], is the second, in 0-255, up to float32 rounding."""

    def check(found: Tensor, expected: np.ndarray) -> None:
        torch.testing.assert_close(found * 255, torch.tensor(expected).float(), rtol=0, atol=1e-3)

    return check
