"""Data sets as tensors with their normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._checks import (
    WHOLE,
    Task,
    WrongValue,
    check_choice,
    check_classes,
    check_kind,
    check_labels,
    check_pair,
    check_targets,
    check_tensor,
    device_of,
    task_of,
)

from ._table_layout import TableLayout


class Normalization(NamedTuple):
    """`input = (pixel - mean) / std` for pixels in [0, 1], per channel.

    A tuple of one number holds for every channel.

    >>> Normalization((0.5,), (0.25,))
    Normalization(mean=(0.5,), std=(0.25,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


IDENTITY = Normalization((0.0,), (1.0,))
MNIST = Normalization((0.1307,), (0.3081,))
CIFAR10 = Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

KNOWN = {"mnist": MNIST, "cifar10": CIFAR10, "none": IDENTITY}

NormalizationLike = str | tuple[Sequence[float], Sequence[float]] | None


def resolve_normalization(value: NormalizationLike) -> Normalization | None:
    """A `Normalization` from a name or a pair; None stays None.

    >>> resolve_normalization("mnist").std
    (0.3081,)
    """
    if value is None:
        return None
    if isinstance(value, str):
        pair = ", or a pair of means and standard deviations, as ((0.5,), (0.25,))"
        check_choice(value, "normalization", KNOWN, pair)
        return KNOWN[value]
    mean, std = check_pair(value, "normalization")
    for numbers in (mean, std):
        check_numbers(numbers, "normalization")
    if min(std) <= 0:
        advice = "Give (means, standard deviations), in this order."
        raise WrongValue(
            "normalization", "hold standard deviations above 0", f"{list(std)}", advice
        )
    return Normalization(tuple(map(float, mean)), tuple(map(float, std)))


def check_numbers(numbers: object, name: str) -> None:
    """Require a sequence of finite numbers, at least one."""
    known = isinstance(numbers, Sequence) and not isinstance(numbers, str) and len(numbers) > 0
    for number in numbers if known else ():  # type: ignore[attr-defined]
        known = known and isinstance(number, (int, float)) and math.isfinite(number)
    if not known:
        expected = "hold finite numbers, one or one for each channel"
        raise WrongValue(name, expected, repr(numbers), "Give a tuple, as (0.5,).", True)


def observed_normalization(inputs: Tensor) -> Normalization:
    """The normalisation under which floats of unknown units span [0, 1], per feature of a table.

    Floats that lie in [0, 1] already are pixels.

    >>> observed_normalization(torch.tensor([[-1.0, 0.0], [3.0, 5.0]]))
    Normalization(mean=(0.25, -0.0), std=(0.25, 0.2))
    """
    if inputs.numel() == 0 or (inputs.min() >= 0 and inputs.max() <= 1):
        return IDENTITY
    table = inputs if inputs.ndim == 2 else inputs.reshape(-1, 1)
    low, high = table.double().aminmax(dim=0)
    width = torch.where(high > low, high - low, 1.0)
    return Normalization(tuple((-low / width).tolist()), tuple((1 / width).tolist()))


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Examples as a model reads them, and the way back to pixels.

    `pixels = inputs * std + mean` in every channel, and `range` is where pixels lie in [0, 1].

    Args:
        inputs: Normalised inputs, float, of shape (N, C, H, W) for images, (N, ...) otherwise; or
            the ids of tokens, int64.
        targets: Class labels, int64, of shape (N,), from 0 to `num_classes - 1`. Or, of shape
            (N, ...): several labels for each example (segmentation, sequences), or numbers, float.
        mean, std: Of each channel in [0, 1] units; one number holds for all channels.
        num_classes: Number of classes; where targets are numbers, how many each example has.
        name: Name for reports.
        layout: Which entries are which columns, for the rows of a table with categories.

    >>> data = Dataset(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 1]), (0.5,), (0.25,), 2, "toy")
    >>> data
    Dataset(name='toy', inputs=(3, 1, 2, 2), num_classes=2, mean=(0.5,), std=(0.25,))
    >>> low, high = data.range
    >>> low.item(), high.item()
    (-2.0, 2.0)
    """

    inputs: Tensor
    targets: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int
    name: str
    layout: TableLayout | None = None

    def __post_init__(self) -> None:
        inputs, targets = self.inputs, self.targets
        check_tensor(inputs, "inputs")
        check_tensor(targets, "targets")
        check_kind(self.name, "name", str, "Name it for reports.")
        if not (inputs.is_floating_point() or self.tokens) or inputs.ndim < 2:
            expected = "hold floats, or the ids of tokens (int64), of shape (N, ...)"
            raise WrongValue("inputs", expected, f"{inputs.dtype} of shape {tuple(inputs.shape)}")
        if targets.ndim == 0 or len(inputs) != len(targets) or len(targets) == 0:
            found = f"{len(inputs)} inputs and {len(targets)} labels"
            advice = "Check that inputs and labels come from the same, complete source."
            expected = "hold one label per input, and at least one input"
            raise WrongValue(f"Data set `{self.name}`", expected, found, advice)
        check_classes(self.num_classes)
        if check_targets(targets, len(inputs)) == "classification":
            check_labels(targets, f"Targets of `{self.name}`", self.num_classes)
        _check_normalization(self)
        if self.layout is not None:
            check_kind(self.layout, "layout", TableLayout, "Use `TableLayout.of(3, [2, 5])`.")
            self.layout.check(inputs)

    @property
    def task(self) -> Task:
        """Whether targets are class labels ("classification"), "numbers" or several "labels"."""
        return task_of(self.targets)

    @property
    def tokens(self) -> bool:
        """Whether inputs are the ids of tokens."""
        return self.inputs.dtype in WHOLE

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return (
            f"Dataset(name={self.name!r}, inputs={tuple(self.inputs.shape)}, "
            f"num_classes={self.num_classes}, mean={self.mean}, std={self.std})"
        )

    def batch(self, start: int, size: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of `size` consecutive examples; `start` counts from 0.

        The paper's batches "starting at image 1, 17, ..." are `start=0, 16, ...` here.
        """
        check_kind(start, "start", int, "Count from 0.")
        check_kind(size, "size", int, "Give how many examples.")
        if start < 0 or size < 1 or start + size > len(self):
            expected = f"select at least one of the examples 0 to {len(self) - 1}, and no other"
            found = f"`start={start}` and `size={size}`"
            advice = "Choose a smaller batch or load more examples."
            raise WrongValue("Parameters `start` and `size`", expected, found, advice)
        return self.inputs[start : start + size], self.targets[start : start + size]

    def to(self, device: torch.device | str) -> Dataset:
        """The same examples on a device."""
        device = device_of(device)
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def to_pixels(self, inputs: Tensor) -> Tensor:
        """Inputs, or reconstructions of them, in [0, 1] units, not clamped."""
        return inputs * self._per_channel(self.std, inputs) + self._per_channel(self.mean, inputs)

    def from_pixels(self) -> Dataset:
        """The same examples, whose inputs are pixels in [0, 1] yet, normalised."""
        mean = self._per_channel(self.mean, self.inputs)
        std = self._per_channel(self.std, self.inputs)
        return replace(self, inputs=(self.inputs - mean).div_(std))

    @property
    def range(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest normalised value of each channel, shaped to broadcast with inputs."""
        mean = self._per_channel(self.mean, self.inputs)
        std = self._per_channel(self.std, self.inputs)
        return -mean / std, (1 - mean) / std

    def _per_channel(self, numbers: tuple[float, ...], like: Tensor) -> Tensor:
        """`numbers` along the channel dimension, ready to broadcast with inputs."""
        trailing = [1] * (self.inputs.ndim - 2)
        return torch.tensor(numbers, dtype=like.dtype, device=like.device).reshape(-1, *trailing)


def _check_normalization(dataset: Dataset) -> None:
    for name in ("mean", "std"):
        check_numbers(getattr(dataset, name), name)
    channels = dataset.inputs.shape[1]
    fit = {len(dataset.mean), len(dataset.std)} <= {1, channels}
    if not fit or min(dataset.std) <= 0:
        each = f"one number, or one for each of the {channels} channels of `{dataset.name}`"
        found = f"`mean={dataset.mean}` and `std={dataset.std}`"
        own = "Parameters `mean` and `std`"
        raise WrongValue(own, f"hold {each}, and `std` should be positive", found)
