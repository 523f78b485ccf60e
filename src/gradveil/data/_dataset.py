"""Data sets as tensors, with their normalisation and the columns of their rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradveil._checks import (
    WHOLE,
    Task,
    WrongValue,
    check_choice,
    check_classes,
    check_inputs,
    check_kind,
    check_labels,
    check_pair,
    check_targets,
    check_tensor,
    device_of,
    task_of,
)


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
    """A `Normalization` from a name or a pair; None stays None."""
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
        expected = "hold standard deviations above 0"
        advice = "Give (means, standard deviations), in this order."
        raise WrongValue("normalization", expected, f"{list(std)}", advice)
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


@dataclass(frozen=True)
class TableLayout:
    """Rows of numbers and categories, encoded as one vector each.

    A continuous column is one entry, standardised to mean 0 and variance 1. A column of categories
    is a group of entries, one for each category, of which one is 1 and the others are 0.

    >>> layout = TableLayout.of(continuous=1, categories=[3, 2])
    >>> layout
    TableLayout(continuous=(0,), categorical=((1, 2, 3), (4, 5)))
    >>> layout.encode(torch.tensor([[0.5]]), torch.tensor([[2, 0]]))
    tensor([[0.5000, 0.0000, 0.0000, 1.0000, 1.0000, 0.0000]])
    """

    continuous: tuple[int, ...]
    categorical: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        groups = [tuple(group) for group in self.categorical]
        object.__setattr__(self, "continuous", tuple(self.continuous))
        object.__setattr__(self, "categorical", tuple(groups))
        places = [*self.continuous, *(place for group in groups for place in group)]
        if sorted(places) != list(range(len(places))) or not places:
            own, expected = "Parameters `continuous` and `categorical`", "name each place once"
            raise WrongValue(own, f"{expected}, from 0", str(sorted(places)))
        if any(len(group) < 2 for group in groups):
            expected, advice = "hold groups of at least two places", "Make it a continuous column."
            raise WrongValue("categorical", expected, str(min(groups, key=len)), advice)

    @classmethod
    def of(cls, continuous: int, categories: Sequence[int] = ()) -> TableLayout:
        """Continuous columns first, then groups of so many categories each."""
        groups, start = [], continuous
        for count in categories:
            groups.append(tuple(range(start, start + count)))
            start += count
        return cls(tuple(range(continuous)), tuple(groups))

    @classmethod
    def from_columns(cls, columns: Sequence[int]) -> TableLayout:
        """From the number of the column that each entry belongs to.

        A column of one entry is continuous, one of several is a group of categories.

        >>> TableLayout.from_columns([0, 1, 1, 1, 2])
        TableLayout(continuous=(0, 4), categorical=((1, 2, 3),))
        """
        places = [[i for i, own in enumerate(columns) if own == c] for c in dict.fromkeys(columns)]
        alone = tuple(group[0] for group in places if len(group) == 1)
        return cls(alone, tuple(tuple(group) for group in places if len(group) > 1))

    @property
    def width(self) -> int:
        """Entries of an encoded row."""
        return len(self.continuous) + sum(len(group) for group in self.categorical)

    def check(self, rows: Tensor, name: str = "inputs") -> None:
        """Require encoded rows of this layout."""
        check_inputs(rows, name)
        if rows.dim() != 2 or rows.shape[1] != self.width:
            expected = f"have the shape (rows, {self.width}) of the layout"
            advice = "Encode the table with `layout.encode`."
            raise WrongValue(name, expected, str(tuple(rows.shape)), advice)

    def encode(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Rows from columns: numbers of shape (rows, continuous), categories by their number."""
        rows = numbers.new_zeros(len(numbers), self.width)
        rows[:, list(self.continuous)] = numbers
        for column, group in enumerate(self.categorical):
            rows[:, list(group)] = one_hot(categories[:, column], len(group)).to(rows)
        return rows

    def numbers(self, rows: Tensor) -> Tensor:
        """The continuous columns."""
        return rows[..., list(self.continuous)]

    def categories(self, rows: Tensor) -> Tensor:
        """The number of the largest entry of each group."""
        found = [rows[..., list(group)].argmax(-1) for group in self.categorical]
        blank = torch.zeros((*rows.shape[:-1], 0), dtype=torch.int64, device=rows.device)
        return torch.stack(found, -1) if found else blank

    def relax(self, logits: Tensor) -> Tensor:
        """Continuous entries as they are, the softmax of each group."""
        relaxed = logits.clone()
        for group in self.categorical:
            relaxed[..., list(group)] = logits[..., list(group)].softmax(-1)
        return relaxed

    def harden(self, rows: Tensor) -> Tensor:
        """Continuous entries as they are, and 1 for the largest entry of each group."""
        flat = rows.reshape(-1, self.width)
        return self.encode(self.numbers(flat), self.categories(flat)).reshape(rows.shape)

    def guess(self, examples: Tensor) -> Tensor:
        """What to say of a row without any message: the means and the most frequent categories."""
        self.check(examples, "examples")
        return self.harden(examples.mean(0, keepdim=True))[0]


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
        for name in ("mean", "std"):
            check_numbers(getattr(self, name), name)
        if not {len(self.mean), len(self.std)} <= {1, inputs.shape[1]} or min(self.std) <= 0:
            each = f"one number, or one for each of the {inputs.shape[1]} channels of `{self.name}`"
            found = f"`mean={self.mean}` and `std={self.std}`"
            own = "Parameters `mean` and `std`"
            raise WrongValue(own, f"hold {each}, and `std` should be positive", found)
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
        mean, std = self._per_channel(inputs)
        return inputs * std + mean

    def from_pixels(self) -> Dataset:
        """The same examples, whose inputs are pixels in [0, 1] yet, normalised."""
        mean, std = self._per_channel(self.inputs)
        return replace(self, inputs=(self.inputs - mean).div_(std))

    @property
    def range(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest normalised value of each channel, shaped to broadcast with inputs."""
        mean, std = self._per_channel(self.inputs)
        return -mean / std, (1 - mean) / std

    def _per_channel(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """`mean` and `std` along the channel dimension, ready to broadcast with inputs."""
        shape = -1, *[1] * (self.inputs.ndim - 2)
        mean = torch.tensor(self.mean, dtype=like.dtype, device=like.device)
        return mean.reshape(shape), mean.new_tensor(self.std).reshape(shape)
