"""Image data sets of the Hugging Face hub, only when asked for by `hf:NAME`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gradveil._extras import require
from gradveil.data._normalization import KNOWN
from gradveil.data._raw import Raw

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
