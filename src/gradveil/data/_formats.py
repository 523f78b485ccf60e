"""Files of examples: IDX, CIFAR's, NPZ, pickles that run no code."""

from __future__ import annotations

import gzip
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gradveil._batches import MOST_CLASSES

from ._dataset import CIFAR10, IDENTITY, MNIST, Dataset, Normalization, observed_normalization
from ._table_layout import TableLayout

if TYPE_CHECKING:
    import numpy as np


T = TypeVar("T")


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


def pick_split(split: str | None, available: Mapping[str, T], folder: Path) -> tuple[str, T]:
    """The asked-for split of a folder; without a wish the test split, else the train split.

    >>> pick_split(None, {"train": 1, "test": 2}, Path("."))
    ('test', 2)
    """
    if split not in (None, "train", "test"):
        raise ValueError(
            f"Parameter `split` should be 'train', 'test' or None for a folder. "
            f"Found `split={split!r}`. Choose one of these."
        )
    for name in ("test", "train") if split is None else (split,):
        if name in available:
            return name, available[name]
    raise FileNotFoundError(
        f"Folder `{folder}` should hold the files of the {split} split. Found only "
        f"{' and '.join(available)}. Add the missing files or choose another split."
    )


def make_dataset(raw: Raw, limit: int | None, normalization: Normalization | None) -> Dataset:
    """Normalise the first `limit` examples of `raw`."""
    num_classes = raw.num_classes or _count_classes(raw)
    if limit is not None and len(raw.values) == len(raw.labels):
        raw = raw._replace(values=raw.values[:limit], labels=raw.labels[:limit])
    normalization = normalization or raw.normalization
    if raw.values.dtype == torch.uint8:
        inputs, normalization = _normalize(raw.values, normalization or IDENTITY)
    elif raw.values.dtype == torch.int64:
        inputs, normalization = raw.values, IDENTITY
    else:
        inputs = raw.values.float()
        normalization = normalization or observed_normalization(inputs)
    numbers = raw.labels.is_floating_point()
    targets = raw.labels.float() if numbers else raw.labels.long()
    return Dataset(inputs, targets, *normalization, num_classes, raw.name, raw.layout)


def _count_classes(raw: Raw) -> int:
    """The largest label and one; of targets that are numbers, how many an example has."""
    if raw.labels.is_floating_point():
        return max(1, raw.labels.shape[1:].numel())
    if raw.labels.numel() and int(raw.labels.max()) >= MOST_CLASSES:
        raise ValueError(
            f"Data set `{raw.name}` should have labels from 0 to {MOST_CLASSES - 1} at most. Found"
            f" the label {int(raw.labels.max())}. Number the classes from 0, without gaps."
        )
    return max(1, int(raw.labels.max()) + 1) if raw.labels.numel() else 1


def _normalize(values: Tensor, normalization: Normalization) -> tuple[Tensor, Normalization]:
    """Pixels of 0 to 255, normalised; one number for all channels is repeated for each."""
    channels = values.shape[1] if values.ndim == 4 else 1
    mean, std = (x * channels if len(x) == 1 else x for x in normalization)
    if (len(mean), len(std)) != (channels, channels):
        raise ValueError(
            f"Parameter `normalization` should hold one mean and one standard deviation, or one "
            f"of each for each of the {channels} channels. Found `mean={mean}` and `std={std}`. "
            f"Choose another normalization."
        )
    shape = (-1, *[1] * (values.ndim - 2))
    centred = values.float() / 255 - torch.tensor(mean).reshape(shape)
    return centred / torch.tensor(std).reshape(shape), Normalization(mean, std)


def load_plain_pickle(path: Path) -> Any:
    """The containers, numbers, strings and numerical arrays pickled in `path`.

    Strings of Python 2 are returned as bytes. Everything but plain data raises a ValueError, and
    nothing of it is imported or called.
    """
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file, encoding="bytes").load()
    except _LOADING_ERRORS as error:
        raise ValueError(
            f"File `{path}` should be a pickle of plain data (numbers, strings, lists, "
            f"dictionaries, numerical arrays). Found `{error}`. Nothing of it was run; use a file "
            f"from the official source."
        ) from error


# What the pickle module documents ("other exceptions may also be raised") and damaged files raise.
_LOADING_ERRORS = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        import numpy as np

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
    import numpy as np

    dtype = np.dtype(name.decode() if isinstance(name, bytes) else name, bool(align), True)
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of {dtype}, not allowed")
    return dtype


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in protocols 0 to 2."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text encoded as {encoding!r}, not allowed")
    return text.encode("latin1")


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


_IMAGE = (3, 32, 32)
_IMAGE_BYTES = 3 * 32 * 32
_BINARY = {"train": "data_batch_[0-9].bin", "test": "test_batch.bin"}
_PYTHON = {"train": "data_batch_[0-9]", "test": "test_batch"}


def has_cifar_binary(folder: Path) -> bool:
    """Whether `folder` holds the binary version."""
    return bool(_batches_in(folder, _BINARY))


def has_cifar_python(folder: Path) -> bool:
    """Whether `folder` holds the Python version."""
    return bool(_batches_in(folder, _PYTHON))


def read_cifar_binary(folder: Path, split: str | None) -> Raw:
    """One split of the binary version: records of one label byte and 3,072 pixel bytes."""
    return _read(folder, split, _BINARY, _read_records)


def read_cifar_python(folder: Path, split: str | None) -> Raw:
    """One split of the Python version: pickled dictionaries, read without running code."""
    return _read(folder, split, _PYTHON, _read_pickle)


def _batches_in(folder: Path, patterns: dict[str, str]) -> dict[str, list[Path]]:
    files = {split: sorted(folder.glob(pattern)) for split, pattern in patterns.items()}
    return {split: paths for split, paths in files.items() if paths}


def _read(
    folder: Path,
    split: str | None,
    patterns: dict[str, str],
    read_file: Callable[[Path], tuple[Tensor, Tensor]],
) -> Raw:
    name, paths = pick_split(split, _batches_in(folder, patterns), folder)
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
