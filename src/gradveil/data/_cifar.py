"""CIFAR-10's official files: the binary version and the Python version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradveil.data._normalization import CIFAR10
from gradveil.data._pickle import load_plain_pickle
from gradveil.data._raw import Raw, pick_split

_IMAGE = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
_BINARY = {"train": "data_batch_[0-9].bin", "test": "test_batch.bin"}
_PYTHON = {"train": "data_batch_[0-9]", "test": "test_batch"}


def has_cifar_binary(folder: Path) -> bool:
    """Whether `folder` holds the binary version."""
    return bool(_find(folder, _BINARY))


def has_cifar_python(folder: Path) -> bool:
    """Whether `folder` holds the Python version."""
    return bool(_find(folder, _PYTHON))


def read_cifar_binary(folder: Path, split: str | None) -> Raw:
    """One split of the binary version: records of one label byte and 3,072 pixel bytes."""
    return _read(folder, split, _BINARY, _read_records)


def read_cifar_python(folder: Path, split: str | None) -> Raw:
    """One split of the Python version: pickled dictionaries, read without running code."""
    return _read(folder, split, _PYTHON, _read_pickle)


def _find(folder: Path, patterns: dict[str, str]) -> dict[str, list[Path]]:
    files = {split: sorted(folder.glob(pattern)) for split, pattern in patterns.items()}
    return {split: paths for split, paths in files.items() if paths}


def _read(
    folder: Path,
    split: str | None,
    patterns: dict[str, str],
    read_file: Callable[[Path], tuple[Tensor, Tensor]],
) -> Raw:
    name, paths = pick_split(split, _find(folder, patterns), folder)
    images, labels = zip(*map(read_file, paths), strict=True)
    return Raw(torch.cat(images), torch.cat(labels), CIFAR10, 10, f"cifar10-{name}")


def _read_records(path: Path) -> tuple[Tensor, Tensor]:
    content = bytearray(path.read_bytes())
    if not content or len(content) % (1 + _IMAGE_BYTES):
        raise ValueError(
            f"File `{path}` should hold records of {1 + _IMAGE_BYTES} bytes. Found "
            f"{len(content)} bytes, which is no multiple of that. Download it again."
        )
    records = torch.frombuffer(content, dtype=torch.uint8).reshape(-1, 1 + _IMAGE_BYTES)
    return records[:, 1:].reshape(-1, *_IMAGE), records[:, 0]


def _read_pickle(path: Path) -> tuple[Tensor, Tensor]:
    content = load_plain_pickle(path)
    batch: dict[Any, Any] = content if isinstance(content, dict) else {}
    data, labels = (batch.get(key, ()) for key in (b"data", b"labels"))
    if not (_is_pixel_table(data) and _is_label_list(labels) and len(data) == len(labels)):
        raise ValueError(
            f"File `{path}` should be a pickled dictionary with uint8 `data` of shape "
            f"(N, {_IMAGE_BYTES}) and a list of N `labels` from 0 to 9. Found something else. "
            f"Download it again."
        )
    return torch.from_numpy(data).reshape(-1, *_IMAGE), torch.tensor(labels)


def _is_pixel_table(data: Any) -> bool:
    import numpy as np

    if not isinstance(data, np.ndarray) or data.dtype != np.uint8:
        return False
    return data.ndim == 2 and data.shape[1] == _IMAGE_BYTES


def _is_label_list(labels: Any) -> bool:
    return isinstance(labels, list) and all(
        isinstance(label, int) and 0 <= label <= 9 for label in labels
    )
