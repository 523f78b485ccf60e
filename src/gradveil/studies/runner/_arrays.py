"""Large arrays in files: atomic writes, and reads that verify a checksum."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gradveil._files import write_atomically

_NAME = re.compile(r"\w[\w-]*")
_STALE = 24 * 3600.0


class DamagedArrayError(ValueError):
    """The error for an array file that is missing or whose content has changed."""


def pack_array(name: str, tensor: Tensor) -> bytes:
    """The bytes of an ``.npy`` file; equal tensors give equal bytes."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"The name of an array should be letters, digits, `_` and `-`. Found {name!r}."
        )
    packed = io.BytesIO()
    np.save(packed, np.ascontiguousarray(tensor.numpy(force=True)), allow_pickle=False)
    return packed.getvalue()


def checksum(data: bytes) -> str:
    """The SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def array_path(folder: Path, key: str, name: str) -> Path:
    """The file of one array of one cell."""
    return folder / key[:2] / f"{key}.{name}.npy"


def write_array(folder: Path, key: str, name: str, data: bytes) -> None:
    """Write one packed array; a file with the same bytes is replaced by itself."""
    path = array_path(folder, key, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def is_intact(folder: Path, key: str, name: str, digest: str) -> bool:
    """Whether the file is there with the bytes that were written."""
    try:
        return checksum(array_path(folder, key, name).read_bytes()) == digest
    except OSError:
        return False


def read_array(folder: Path, key: str, name: str, digest: str) -> Tensor:
    """Read one array, if its bytes are those that were written."""
    path = array_path(folder, key, name)
    data = path.read_bytes() if path.is_file() else b""
    if checksum(data) != digest:
        raise DamagedArrayError(
            f"File `{path}` should have the checksum in the store. Found"
            f" {'other bytes' if data else 'no such file'}. Run `gradveil reproduce` again, which"
            " repeats its cell."
        )
    return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))


def remove_leftovers(folder: Path) -> None:
    """Remove what processes killed a day ago or earlier left half written."""
    for path in folder.glob("*/.*.npy.*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _STALE:
                path.unlink()
