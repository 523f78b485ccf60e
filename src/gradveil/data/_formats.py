"""Files of examples: MNIST's and CIFAR-10's official ones, NPZ, pickles that run no code."""

import gzip
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradveil._checks import WrongValue

from ._dataset import CIFAR10, MNIST, Normalization, TableLayout, check_numbers

Array = np.ndarray[Any, Any]


class Raw(NamedTuple):
    """Data as stored: uint8 pixels of shape (N, C, H, W), or what is taken as it is.

    That is floats, or int64 ids of tokens. Targets are int64 labels or floats.
    """

    values: Tensor
    labels: Tensor
    normalization: Normalization | None
    num_classes: int | None
    name: str
    layout: TableLayout | None = None


class FolderLayout(NamedTuple):
    """Official files: how each split's are named, and how one is read."""

    patterns: Mapping[str, str]
    read: Callable[[Path], tuple[Tensor, Tensor]]
    normalization: Normalization
    name: str

    def files(self, folder: Path) -> dict[str, list[Path]]:
        """The files of each split that is there; of IDX files the plain one before the gzipped."""
        found = {split: sorted(folder.glob(pattern)) for split, pattern in self.patterns.items()}
        return {split: paths for split, paths in found.items() if paths}

    def load(self, folder: Path, split: str | None) -> Raw:
        """One split; without a wish the test split, else the train split."""
        if split not in (None, "train", "test"):
            expected = "be 'train', 'test' or None for a folder"
            raise WrongValue("split", expected, repr(split), assigned=True)
        available = self.files(folder)
        chosen = split or ("test" if "test" in available else "train")
        if chosen not in available:
            raise FileNotFoundError(
                f"Folder `{folder}` should hold the files of the {split} split. Found only "
                f"{' and '.join(available)}. Add the missing files or choose another split."
            )
        paths = available[chosen][:1] if self.name == "mnist" else available[chosen]
        images, labels = zip(*map(self.read, paths), strict=True)
        name = f"{self.name}-{chosen}"
        return Raw(torch.cat(images), torch.cat(labels), self.normalization, 10, name)


def _read_idx_pair(path: Path) -> tuple[Tensor, Tensor]:
    """The images of an IDX file, which may be gzipped, and the labels beside it."""
    stem = path.name.split("-images")[0]
    names = [f"{stem}-labels{sign}idx1-ubyte{end}" for sign in "-." for end in ("", ".gz")]
    labels = next((path.parent / name for name in names if (path.parent / name).is_file()), None)
    if labels is None:
        raise FileNotFoundError(
            f"Folder `{path.parent}` should hold `{names[0]}` (or .gz) beside `{path.name}`. Found"
            " no such file. Add it."
        )
    return _read_idx(path, ndim=3).unsqueeze(1), _read_idx(labels, ndim=1)


def _read_idx(path: Path, ndim: int) -> Tensor:
    """The uint8 array with `ndim` dimensions of one IDX file."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(path, "be a complete gzip file", f"`{error}`") from error
    header, magic = 4 + 4 * ndim, bytes([0, 0, 8, ndim])  # 8: unsigned bytes
    if content[:4] != magic or len(content) < header:
        found = f"{content[:4].hex() or 'nothing'} and {len(content)} bytes in all"
        raise _damaged(path, f"be an IDX file that starts with the bytes {magic.hex()}", found)
    shape, values = struct.unpack(f">{ndim}I", content[4:header]), content[header:]
    if len(values) != prod(shape):
        raise _damaged(path, f"hold {prod(shape)} values for its shape {shape}", f"{len(values)}")
    return torch.from_numpy(np.frombuffer(values, np.uint8).copy()).view(shape)


def _damaged(path: Path, expected: str, found: str) -> WrongValue:
    return WrongValue(f"File `{path}`", expected, found, "Download it again.")


def _read_records(path: Path) -> tuple[Tensor, Tensor]:
    """CIFAR-10's binary version: records of one label byte and 3,072 pixel bytes."""
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % 3073:
        found = f"{len(content)} bytes, which is no multiple of that"
        raise _damaged(path, "hold records of 3073 bytes", found)
    records = torch.from_numpy(content).view(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _read_pickle(path: Path) -> tuple[Tensor, Tensor]:
    """CIFAR-10's Python version: pickled dictionaries, read without running code."""
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="bytes").load()
    except Exception as error:  # "other exceptions may also be raised", say pickle's docs
        plain = "plain data (numbers, strings, lists, dictionaries, numerical arrays)"
        advice = "Nothing of it was run; use a file from the official source."
        found = f"`{error}`"
        raise WrongValue(f"File `{path}`", f"be a pickle of {plain}", found, advice) from error
    batch: dict[Any, Any] = content if isinstance(content, dict) else {}
    data, labels = batch.get(b"data"), batch.get(b"labels")
    pixels = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (3072,)
    digits = isinstance(labels, list) and all(
        isinstance(label, int) and 0 <= label <= 9 for label in labels
    )
    if not pixels or not digits or len(data) != len(labels):  # type: ignore[arg-type]
        parts = "uint8 `data` of shape (N, 3072) and a list of N `labels` from 0 to 9"
        raise _damaged(path, f"be a pickled dictionary with {parts}", "something else")
    return torch.from_numpy(data).reshape(-1, 3, 32, 32), torch.tensor(labels)


class _PlainUnpickler(pickle.Unpickler):
    """Containers, numbers, strings and numerical arrays; nothing else is imported or called."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        array = np.zeros(1)
        allowed = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): _number_dtype,
            ("_codecs", "encode"): _encode_latin1,
        }
        for package in ("numpy.core", "numpy._core"):  # before and since NumPy 2
            allowed[f"{package}.multiarray", "_reconstruct"] = array.__reduce_ex__(2)[0]
            allowed[f"{package}.numeric", "_frombuffer"] = array.__reduce_ex__(5)[0]
        if (module_name, global_name) not in allowed:
            raise pickle.UnpicklingError(f"a reference to {module_name}.{global_name}, not allowed")
        return allowed[module_name, global_name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent reference, not allowed")


def _number_dtype(name: str | bytes, align: object = False, copy: object = True) -> np.dtype[Any]:
    """`np.dtype` of numbers only.

    Old pickles give `align` as an integer, now deprecated. Always a copy, since unpickling sets
    the state of what is returned, which must not be NumPy's own.
    """
    dtype = np.dtype(name.decode() if isinstance(name, bytes) else name, bool(align), True)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of {dtype}, not allowed")
    return dtype


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in protocols 0 to 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}, not allowed")
    return text.encode("latin1")


FOLDERS = {
    "MNIST IDX files": FolderLayout(
        {"train": "train-images[-.]idx3-ubyte*", "test": "t10k-images[-.]idx3-ubyte*"},
        _read_idx_pair,
        MNIST,
        "mnist",
    ),
    "CIFAR-10 binary files": FolderLayout(
        {"train": "data_batch_[0-9].bin", "test": "test_batch.bin"},
        _read_records,
        CIFAR10,
        "cifar10",
    ),
    "CIFAR-10 Python files": FolderLayout(
        {"train": "data_batch_[0-9]", "test": "test_batch"}, _read_pickle, CIFAR10, "cifar10"
    ),
}

_PAIRS = (
    ("images", "labels"),
    ("inputs", "targets"),
    ("x", "y"),
    ("tokens", "labels"),
    ("tokens", "targets"),
    ("tokens", "tokens"),  # ids alone are their own targets, as a language model's
)


def read_npz(path: Path) -> Raw:
    """The inputs and targets of an archive.

    `mean`, `std`, `num_classes`, and for a table with categories `columns`, are optional.
    """
    arrays = _load_arrays(path)
    for inputs_key, labels_key in _PAIRS:
        if inputs_key in arrays and labels_key in arrays:
            break
    else:
        expected = ", ".join(f"`{first}` and `{second}`" for first, second in _PAIRS[:3])
        found = ", ".join(f"`{key}`" for key in arrays) or "none"
        raise WrongValue(
            f"File `{path}`", f"hold arrays named {expected}", found, "Rename its arrays."
        )
    to_values = _to_tokens if inputs_key == "tokens" else _to_values
    values = to_values(arrays[inputs_key], f"`{inputs_key}` of `{path}`")
    what, are_classes = f"`{labels_key}` of `{path}`", labels_key == "labels"
    labels = _to_targets(arrays[labels_key], what, are_classes)
    layout = _to_layout(arrays["columns"], path) if "columns" in arrays else None
    num_classes = arrays["num_classes"].squeeze().tolist() if "num_classes" in arrays else None
    return Raw(values, labels, _stored_normalization(arrays, path), num_classes, path.stem, layout)


def _load_arrays(path: Path) -> dict[str, Array]:
    wanted = {"mean", "std", "num_classes", "columns"}.union(*_PAIRS)
    try:
        with zipfile.ZipFile(path):  # np.load would take other formats, too
            pass
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files if key in wanted}
    except OSError as error:
        advice = "Check its permissions."
        raise WrongValue(f"File `{path}`", "be readable", f"`{error}`", advice) from error
    except Exception as error:  # a damaged archive raises whatever its readers do not expect
        expected = "be an .npz archive of numerical arrays (no objects, which could run code)"
        advice = "Save it again with `numpy.savez`."
        raise WrongValue(f"File `{path}`", expected, f"`{error}`", advice) from error


def _require(fits: bool, array: Array, what: str, expected: str, advice: str = "") -> None:
    if not fits:
        found = f"{array.dtype} of shape {array.shape}"
        raise WrongValue(f"Array {what}", f"hold {expected}", found, advice)


def _to_values(array: Array, what: str) -> Tensor:
    """Floats as they are; pixels as (N, C, H, W), from (N, H, W), (N, C, H, W) or (N, H, W, C)."""
    known = array.dtype == np.uint8 or array.dtype.kind == "f"
    advice = "Convert it, with `.astype('uint8')` for pixels; name an array of token ids `tokens`."
    _require(known and array.ndim >= 2, array, what, "uint8 pixels or floats, (N, ...)", advice)
    if array.dtype.kind == "f":
        if not np.isfinite(values := array.astype(np.float32)).all():
            found, advice = "NaN or infinity", "Clean the data."
            raise WrongValue(f"Array {what}", "hold finite numbers", found, advice)
        return torch.from_numpy(values)
    pixels = torch.from_numpy(array)
    if pixels.ndim == 3:
        return pixels.unsqueeze(1)
    channels = pixels.ndim == 4 and min(pixels.shape[1], pixels.shape[3]) in (1, 3, 4)
    shapes = "images of shape (N, H, W), (N, C, H, W) or (N, H, W, C), with 1, 3 or 4 channels"
    advice = "Transpose it, or save floats, which are taken as they are."
    _require(channels or pixels.ndim == 2, array, what, shapes, advice)
    return pixels.movedim(3, 1) if channels and pixels.shape[3] < pixels.shape[1] else pixels


def _to_tokens(array: Array, what: str) -> Tensor:
    fits = array.dtype.kind in "iu" and array.ndim == 2 and bool((array >= 0).all())
    expected = "the ids of tokens, integers from 0 of shape (N, length)"
    _require(fits, array, what, expected, "Pad sequences to one length.")
    return torch.from_numpy(array.astype(np.int64))


def _to_targets(array: Array, what: str, are_classes: bool) -> Tensor:
    """Integers as labels, one or several for each input; floats, and yes or no, as numbers."""
    kind, advice = array.dtype.kind, "For names of classes, save their numbers."
    known = kind in "iufb" and array.ndim > 0
    _require(known, array, what, "integer classes, or numbers, for each input", advice)
    numbers = kind == "f" and array.ndim == 1 and are_classes
    advice = "Save `labels.astype(int)`, or, for numbers, name the array `targets`."
    _require(not numbers, array, what, "integer classes", advice)
    if kind in "fb":
        return torch.from_numpy(array.astype(np.float32))
    one_hot = array.ndim == 2 and array.shape[1] > 1 and {*np.unique(array)} == {0, 1}
    one_hot = one_hot and bool((array.sum(1) == 1).all())
    advice = "For one-hot labels, save `labels.argmax(1)`."
    _require(not one_hot, array, what, "numbers of classes", advice)
    small = not array.size or int(array.max()) <= np.iinfo(np.int64).max
    _require(small, array, what, "classes from 0", "Number the classes from 0.")
    column = array.ndim == 2 and array.shape[1] == 1
    return torch.from_numpy((array[:, 0] if column else array).astype(np.int64))


def _to_layout(array: Array, path: Path) -> TableLayout:
    """The number of the column that each entry of a row belongs to."""
    expected = "the number of a column for each entry of a row, integers of shape (entries,)"
    fits = array.dtype.kind in "iu" and array.ndim == 1
    _require(fits, array, f"`columns` of `{path}`", expected)
    return TableLayout.from_columns(array.tolist())


def _stored_normalization(arrays: Mapping[str, Array], path: Path) -> Normalization | None:
    stored = {name: arrays[name].ravel().tolist() for name in ("mean", "std") if name in arrays}
    for name, numbers in stored.items():
        check_numbers(numbers, name)
    if len(stored) == 1:
        expected = "hold both `mean` and `std` as numbers, or neither"
        raise WrongValue(f"File `{path}`", expected, "only one of them", "Save both.")
    return Normalization(*map(tuple, stored.values())) if stored else None
