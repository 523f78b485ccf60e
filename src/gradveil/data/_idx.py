"""MNIST's official IDX files.

The format: two zero bytes, a type code (8: unsigned bytes), the number of dimensions, each
dimension as a big-endian 32-bit integer, then the values.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from gradveil.data._normalization import MNIST
from gradveil.data._raw import Raw, pick_split

_PREFIXES = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTES = 8


def has_idx(folder: Path) -> bool:
    """Whether `folder` holds MNIST images in IDX files."""
    return any(_find(folder, f"{prefix}-images", 3) for prefix in _PREFIXES.values())


def read_idx_folder(folder: Path, split: str | None) -> Raw:
    """The images and labels of one split, from files that may be gzipped."""
    available = {
        name: path
        for name, prefix in _PREFIXES.items()
        if (path := _find(folder, f"{prefix}-images", 3)) is not None
    }
    name, images_path = pick_split(split, available, folder)
    labels_path = _find(folder, f"{_PREFIXES[name]}-labels", 1)
    if labels_path is None:
        raise FileNotFoundError(
            f"Folder `{folder}` should hold `{_PREFIXES[name]}-labels-idx1-ubyte` (or .gz) beside "
            f"`{images_path.name}`. Found no such file. Add it."
        )
    images, labels = read_idx(images_path, ndim=3), read_idx(labels_path, ndim=1)
    return Raw(images.unsqueeze(1), labels, MNIST, 10, f"mnist-{name}")


def read_idx(path: Path, ndim: int) -> Tensor:
    """The uint8 array with `ndim` dimensions of one IDX file."""
    content = _read_bytes(path)
    header_size = 4 + 4 * ndim
    magic, expected = content[:4], bytes([0, 0, _UNSIGNED_BYTES, ndim])
    if magic != expected or len(content) < header_size:
        raise ValueError(
            f"File `{path}` should be an IDX file that starts with the bytes {expected.hex()}. "
            f"Found {magic.hex() or 'nothing'} and {len(content)} bytes in all. Download it again."
        )
    shape = struct.unpack(f">{ndim}I", content[4:header_size])
    entries = len(content) - header_size
    if entries != prod(shape):
        raise ValueError(
            f"File `{path}` should hold {prod(shape)} values for its shape {shape}. "
            f"Found {entries}. It is truncated or damaged: download it again."
        )
    if entries == 0:
        return torch.zeros(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header_size).reshape(shape)


def _find(folder: Path, stem: str, ndim: int) -> Path | None:
    """The plain file if there is one, else the gzipped one."""
    for name in (f"{stem}-idx{ndim}-ubyte", f"{stem}.idx{ndim}-ubyte"):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def _read_bytes(path: Path) -> bytearray:
    if path.suffix != ".gz":
        return bytearray(path.read_bytes())
    try:
        with gzip.open(path) as file:
            return bytearray(file.read())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"File `{path}` should be a complete gzip file. Found `{error}`. Download it again."
        ) from error
