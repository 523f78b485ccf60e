"""Checks of a batch of examples: inputs, labels, their shapes and their range."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ._checks import (
    REAL,
    WrongType,
    WrongValue,
    all_finite,
    check_count,
    check_inputs,
    check_tensor,
)

MOST_CLASSES = 2**20
"""Labels above this are no numbers of classes: a model would need an output for each."""

Task = Literal["classification", "numbers", "labels"]
"""What targets are: one class label for each example, numbers (regression, several yes-or-no
labels), or several class labels for each example (segmentation, sequences)."""

TASKS: tuple[Task, ...] = ("classification", "numbers", "labels")


def task_of(targets: Tensor) -> Task:
    """The task that targets are of.

    >>> task_of(torch.tensor([0, 1])), task_of(torch.zeros(2, 3)), task_of(torch.tensor([[0, 1]]))
    ('classification', 'numbers', 'labels')
    """
    if targets.is_floating_point():
        return "numbers"
    return "classification" if targets.dim() == 1 else "labels"


def check_targets(targets: Any, count: int, name: str = "targets") -> Task:
    """Require class labels, several labels or numbers, one row for each input; returns the task.

    Several labels for one example may be any integers: losses ignore some, as -100.
    """
    known = isinstance(targets, Tensor) and targets.dtype in (torch.int64, *REAL)
    if not known or targets.shape[:1] != (count,) or targets.numel() == 0:
        kinds = "one class label (int64), several, or numbers (float32)"
        advice = "Convert labels with `torch.as_tensor(targets).long()`, numbers with `.float()`."
        expected = f"hold {kinds} for each of the {count} inputs"
        raise WrongValue(name, expected, _described(targets), advice)
    if targets.is_floating_point() and not all_finite(targets):
        advice = "Leave out examples without a target."
        raise WrongValue(name, "hold finite numbers", "NaN or infinity", advice)
    return task_of(targets)


def check_examples(
    batch: Any, name: str = "batch", num_classes: int | None = None, *, tokens: bool = False
) -> tuple[Tensor, Tensor]:
    """Require a pair of inputs and targets of any task, one for each input; returns the pair."""
    inputs, targets = check_pair(batch, name)
    check_inputs(inputs, "inputs", tokens=tokens)
    if check_targets(targets, len(inputs)) == "classification":
        check_labels(targets, "targets", num_classes)
    return inputs, targets


def check_pair(pair: Any, name: str) -> tuple[Any, Any]:
    """Require two things; returns them."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        length = f" of {len(pair)}" if isinstance(pair, (tuple, list)) else ""
        expected = "be a pair, as (inputs, targets) or (low, high)"
        raise WrongType(name, expected, f"{type(pair).__name__}{length}")
    return pair[0], pair[1]


def _described(targets: object) -> str:
    if isinstance(targets, Tensor):
        return f"{targets.dtype} {tuple(targets.shape)}"
    return type(targets).__name__


def check_labels(
    labels: Any, name: str, num_classes: int | None = None, why: str = "there are {} classes"
) -> None:
    """Require integers of at least 0, and below the number of classes where that is known."""
    check_tensor(labels, name)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        found = f"`{name}.dtype = {labels.dtype}`"
        raise WrongType(name, "hold integers", found, "Convert it with `.long()`.")
    if labels.numel() == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    found = f"labels from {low} to {high}"
    if low < 0:
        advice = "Leave out examples without a label (-100, as losses ignore it)."
        raise WrongValue(name, "hold numbers of at least 0", found, advice)
    if num_classes is not None and high >= num_classes:
        expected = f"hold labels from 0 to {num_classes - 1}: {why.format(num_classes)}"
        advice = f"Number the classes from 0, or use a model with at least {high + 1} outputs."
        raise WrongValue(name, expected, found, advice)


def check_classes(count: Any, name: str = "num_classes") -> None:
    """Require a number of classes, for each of which a model can have an output."""
    check_count(count, name)
    if count > MOST_CLASSES:
        found = str(count) if count < 2**63 else f"a number of {count.bit_length()} bits"
        raise WrongValue(name, f"be at most {MOST_CLASSES}", found, "Number the classes from 0.")


def check_shape(shape: Any, name: str) -> None:
    """Require the sizes of one example, each at least 1."""
    sizes = isinstance(shape, Sequence) and not isinstance(shape, str)
    whole = sizes and all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape)
    if not whole:
        advice = "Give for example (1, 28, 28)."
        raise WrongValue(name, "hold integers of at least 1", repr(shape), advice, True)


def check_range(low: Any, high: Any) -> None:
    """Require a range that is not reversed, or none."""
    for name, end in (("low", low), ("high", high)):
        if end is not None:
            check_tensor(end, name)
            if bool(end.isnan().any()):
                advice = "Use `None` where the range is not known."
                raise WrongValue(name, "hold numbers", "NaN", advice)
    if low is not None and high is not None and bool((low > high).any()):
        found = f"`low = {float(low.max()):g}` and `high = {float(high.min()):g}`"
        raise WrongValue("low", "not be above `high`", found, "Exchange them.")
