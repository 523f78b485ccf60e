"""NumPy `.npz` archives: images of any usual layout, float arrays of any shape, or tokens."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradveil.data._normalization import Normalization
from gradveil.data._raw import Raw
from gradveil.data._table_layout import TableLayout

if TYPE_CHECKING:
    import numpy as np

_KEYS = (("images", "labels"), ("inputs", "targets"), ("x", "y"))
_TOKENS = (("tokens", "labels"), ("tokens", "targets"), ("tokens", "tokens"))
"""Ids of tokens; alone they are their own targets, as a language model's."""
_CHANNELS = (1, 3, 4)
_DAMAGES = (KeyError, TypeError, SyntaxError, NotImplementedError, RuntimeError, MemoryError)


def read_npz(path: Path) -> Raw:
    """The inputs and targets of an archive.

    `mean`, `std`, `num_classes`, and for a table with categories `columns`, are optional.
    """
    arrays = _load_arrays(path)
    for inputs_key, labels_key in (*_KEYS, *_TOKENS):
        if inputs_key in arrays and labels_key in arrays:
            break
    else:
        expected = ", ".join(f"`{first}` and `{second}`" for first, second in _KEYS)
        raise ValueError(
            f"File `{path}` should hold arrays named {expected}. Found "
            f"{', '.join(f'`{key}`' for key in arrays) or 'none'}. Rename its arrays."
        )
    to_values = _to_tokens if inputs_key == "tokens" else _to_values
    values = to_values(arrays[inputs_key], f"`{inputs_key}` of `{path}`")
    labels = _to_targets(arrays[labels_key], f"`{labels_key}` of `{path}`")
    layout = _to_layout(arrays["columns"], path) if "columns" in arrays else None
    num_classes = _to_count(arrays["num_classes"], path) if "num_classes" in arrays else None
    stored = _stored_normalization(arrays, path)
    return Raw(values, labels, stored, num_classes, path.stem, layout)


def _load_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    wanted = {"mean", "std", "num_classes", "columns"}.union(*_KEYS, *_TOKENS)
    try:
        with zipfile.ZipFile(path):  # np.load would take other formats, too
            pass
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files if key in wanted}
    except OSError as error:
        raise ValueError(
            f"File `{path}` should be readable. Found `{error}`. Check its permissions."
        ) from error
    except (zipfile.BadZipFile, EOFError, ValueError, zlib.error, *_DAMAGES) as error:
        raise ValueError(
            f"File `{path}` should be an .npz archive of numerical arrays (no objects, which could "
            f"run code). Found `{error}`. Save it again with `numpy.savez`."
        ) from error


def _to_values(array: np.ndarray[Any, Any], what: str) -> Tensor:
    import numpy as np

    if array.dtype == np.uint8 and array.ndim >= 2:
        return _to_nchw(torch.from_numpy(array), what)
    if array.dtype.kind != "f" or array.ndim < 2:
        raise ValueError(
            f"Array {what} should hold uint8 pixels or floats, of shape (N, ...). Found "
            f"{array.dtype} of shape {array.shape}. Convert it, with `.astype('uint8')` for "
            "pixels; name an array of token ids `tokens`."
        )
    if not np.isfinite(values := array.astype(np.float32)).all():
        raise ValueError(
            f"Array {what} should hold finite numbers. Found NaN or infinity. Clean the data."
        )
    return torch.from_numpy(values)


def _to_nchw(pixels: Tensor, what: str) -> Tensor:
    """Pixels as (N, C, H, W), from (N, H, W), (N, C, H, W) or (N, H, W, C); tables stay tables."""
    if pixels.ndim == 2:
        return pixels
    if pixels.ndim == 3:
        return pixels.unsqueeze(1)
    if pixels.ndim == 4 and min(pixels.shape[1], pixels.shape[3]) in _CHANNELS:
        channels_last = pixels.shape[3] < pixels.shape[1]
        return pixels.movedim(3, 1) if channels_last else pixels
    raise ValueError(
        f"Array {what} should hold images of shape (N, H, W), (N, C, H, W) or (N, H, W, C), with "
        f"1, 3 or 4 channels. Found shape {tuple(pixels.shape)}. Transpose it, or save floats, "
        f"which are taken as they are."
    )


def _to_tokens(array: np.ndarray[Any, Any], what: str) -> Tensor:
    import numpy as np

    if array.dtype.kind not in "iu" or array.ndim != 2 or (array.size and int(array.min()) < 0):
        raise ValueError(
            f"Array {what} should hold the ids of tokens, integers from 0 of shape (N, length)."
            f" Found {array.dtype} of shape {array.shape}. Pad sequences to one length."
        )
    return torch.from_numpy(array.astype(np.int64))


def _to_targets(array: np.ndarray[Any, Any], what: str) -> Tensor:
    """Integers as labels, one or several for each input; floats, and yes or no, as numbers."""
    import numpy as np

    if array.dtype.kind not in "iufb" or array.ndim == 0:
        raise ValueError(
            f"Array {what} should hold integer classes, or numbers, for each input. Found"
            f" {array.dtype} of shape {array.shape}. For names of classes, save their numbers."
        )
    if array.dtype.kind == "f" and array.ndim == 1 and what.startswith("`labels`"):
        raise ValueError(
            f"Array {what} should hold integer classes. Found {array.dtype}. Save"
            " `labels.astype(int)`, or, for numbers, name the array `targets`."
        )
    if array.dtype.kind in "fb":
        return torch.from_numpy(array.astype(np.float32))
    if array.ndim == 2 and array.shape[1] > 1 and _is_one_hot(array):
        raise ValueError(
            f"Array {what} should hold the numbers of classes. Found one-hot rows. For one-hot"
            " labels, save `labels.argmax(1)`."
        )
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(
            f"Array {what} should hold classes from 0. Found {int(array.max())}. Number the"
            " classes from 0."
        )
    return torch.from_numpy(array.astype(np.int64))


def _is_one_hot(array: np.ndarray[Any, Any]) -> bool:
    return bool(((array == 0) | (array == 1)).all() and (array.sum(1) == 1).all())


def _to_layout(array: np.ndarray[Any, Any], path: Path) -> TableLayout:
    """The number of the column that each entry of a row belongs to."""
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(
            f"Array `columns` of `{path}` should hold the number of a column for each entry of a"
            f" row, integers of shape (entries,). Found {array.dtype} of shape {array.shape}."
        )
    return TableLayout.from_columns(array.tolist())


def _to_count(array: np.ndarray[Any, Any], path: Path) -> int:
    if array.size != 1 or array.dtype.kind not in "iu" or int(array.reshape(())) < 1:
        raise ValueError(
            f"Array `num_classes` of `{path}` should be one integer of at least 1. Found"
            f" {array.dtype} {array.tolist()}. Leave it out, or save the number of classes."
        )
    return int(array.reshape(()))


def _stored_normalization(
    arrays: dict[str, np.ndarray[Any, Any]], path: Path
) -> Normalization | None:
    if ("mean" in arrays) != ("std" in arrays):
        raise ValueError(
            f"File `{path}` should hold both `mean` and `std`, or neither. Found only one of them. "
            f"Save the other, too."
        )
    if "mean" not in arrays:
        return None
    for key in ("mean", "std"):
        if arrays[key].dtype.kind not in "iuf":
            raise ValueError(
                f"Array `{key}` of `{path}` should hold numbers. Found {arrays[key].dtype}."
                " Save floats."
            )
    mean, std = (tuple(arrays[key].astype(float).ravel().tolist()) for key in ("mean", "std"))
    return Normalization(mean, std)
