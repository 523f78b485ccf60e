"""Data as the readers return it, and how a `Dataset` is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gradveil._batches import MOST_CLASSES
from gradveil.data._dataset import Dataset
from gradveil.data._normalization import (
    IDENTITY,
    Normalization,
    observed_normalization,
)
from gradveil.data._table_layout import TableLayout

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
