"""Entries that tell of the inputs although autograd reports a derivative of 0."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._typing import Tensors
from gradveil.messages import Message, values_of

SIZES = (1.0, 1.0, 3.0, 3.0)
"""Of the noise on other inputs, over their spread: a category or a class takes some to change."""


class HiddenPathWarning(UserWarning):
    """A message depends on its inputs in a way that autograd does not see.

    >>> import warnings
    >>> from gradveil import measure
    >>> message = lambda x: {"w": x.sum(0), "hidden": x.detach().sum(0)}
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     moments = measure(message, torch.rand(2, 3))
    >>> [warning.category.__name__ for warning in caught]
    ['HiddenPathWarning']
    """


@dataclass(frozen=True)
class Hidden:
    """Entries that move with the inputs while their derivative is 0."""

    masks: Tensors
    squares: Tensors
    """What stands for ‖∇_x g_i‖² there: (Δg_i)² / mean (Δx)², the largest of those tried, the mean
    over a tensor's entries."""

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(int(mask.sum()) for mask in self.masks.values())

    def put_into(self, squares: Tensors) -> Tensors:
        """The squared sensitivities with the entries' own in the place of 0."""
        return {
            name: torch.where(self.masks[name], self.squares[name].to(square.dtype), square)
            for name, square in squares.items()
        }

    def warn(self, entries: int) -> None:
        """Say so, once for each place that measures."""
        warnings.warn(
            f"{self.count} of {entries} entries of the message move with the inputs although their"
            " derivative is 0: the model or the loss hides a path from autograd (detach, rounding,"
            " an integer index, a function that is differentiable once, a saturated output). They"
            " get noise as if sensitive, and every bound is 0.",
            HiddenPathWarning,
            stacklevel=4,
        )


def find_hidden(
    message: Message, inputs: Tensor, values: Tensors, squares: Tensors, generator: torch.Generator
) -> Hidden | None:
    """The entries with a value but no derivative that other inputs prove to be hidden.

    Zero sensitivity of an entry that is not 0 itself is believed only if the entry stays where it
    is for other inputs: the examples of the batch in each other's places, and the inputs with
    noise of their own size. Where no other inputs can be evaluated, nothing is proven, and the
    entry counts as hidden. `None` where there is nothing to doubt, at no cost.
    """
    doubted = {name: (square == 0) & (values[name] != 0) for name, square in squares.items()}
    if not any(bool(mask.any()) for mask in doubted.values()):
        return None
    changes = list(_changes(message, inputs, values, generator))
    if not changes:
        changes = [(values, spread_of(inputs))]
    rounding = rounding_of(values)
    masks = {n: mask & _moves(changes, n, mask, rounding) for n, mask in doubted.items()}
    if not any(bool(mask.any()) for mask in masks.values()):
        return None
    slopes = {n: torch.stack([change[n] / dx for change, dx in changes]) for n in values}
    largest = {n: slope.square().amax(0) for n, slope in slopes.items()}
    return Hidden(masks, {n: _mean_over(square, masks[n]) for n, square in largest.items()})


def values_at_others(
    message: Message, inputs: Tensor, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensors]]:
    """Other inputs that the message accepts, each with its values there."""
    for other in _other_inputs(inputs, generator):
        try:
            values = values_of(message, other)
        except (RuntimeError, ValueError, IndexError):  # an index out of range, for example
            continue
        yield other, values


def _other_inputs(inputs: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Inputs of the same kind: examples in each other's places, and noise on all of them."""
    if len(inputs) > 1 and not torch.equal(inputs, inputs.roll(1, 0)):
        yield inputs.roll(1, 0)
    for times in SIZES:
        yield inputs + times * spread_of(inputs) * normal_like(inputs, generator)


def spread_of(inputs: Tensor) -> float:
    """The size of what varies in the inputs: their standard deviation, or their size, or 1."""
    row = inputs.detach().reshape(-1).double()
    deviation = float(row.std()) if len(row) > 1 else 0.0
    return deviation or float(row.abs().max()) or 1.0


def rounding_of(values: Tensors) -> float:
    """The size of rounding errors in a message: 16 units in the last place of its largest entry."""
    sizes = [
        16 * torch.finfo(value.dtype).eps * float(value.detach().abs().max())
        for value in values.values()
        if value.numel()
    ]
    return max(sizes, default=0.0)


def _changes(
    message: Message, inputs: Tensor, values: Tensors, generator: torch.Generator
) -> Iterator[tuple[Tensors, float]]:
    """Δg and √mean (Δx)² for each of the other inputs that the message accepts."""
    for other, moved in values_at_others(message, inputs, generator):
        distance = float((other - inputs).detach().double().square().mean().sqrt())
        yield {name: moved[name] - value for name, value in values.items()}, distance


def _moves(
    changes: list[tuple[Tensors, float]], name: str, doubted: Tensor, rounding: float
) -> Tensor:
    """Whether an entry that is doubted moved by more than rounding; one speaks for its tensor."""
    moved = torch.stack([change[name].abs() > rounding for change, _ in changes]).any(0)
    return (moved & doubted).any().expand(doubted.shape)


def _mean_over(square: Tensor, mask: Tensor) -> Tensor:
    if not bool(mask.any()):
        return torch.zeros_like(square)
    return square[mask].mean().expand(square.shape)
