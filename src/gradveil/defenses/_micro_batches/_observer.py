"""The values and moments of one step, put together from its micro-batches."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradveil._checks import check_inputs, check_structure, check_values
from gradveil._typing import Tensors
from gradveil.messages import Message, check_finite_message, explained, takes_tokens, values_of
from gradveil.sensitivity import Moments

if TYPE_CHECKING:
    from .._base import Defense


class Observer:
    """Adds up g = Σ_k w_k g_k(x_k) and its moments over micro-batches x_k.

    Micro-batches share no inputs, so ∇_x g has the blocks w_k ∇g_k, and
    ‖∇_x g_i‖² = Σ_k w_k² ‖∇g_k,i‖²: exact, whatever happens inside of a micro-batch. The squares of
    the values are those of the sum, g_i². Squares of single examples are a mean, or a sum, as the
    loss itself is: h_i = Σ_k w_k h_k,i.

    A plan that is not private is made once, in `finish`, from what the micro-batches' values never
    enter. The defense itself is left as it is until then.
    """

    def __init__(self, defense: "Defense") -> None:
        self._defense = defense
        self._sum: tuple[Tensors, Moments] | None = None
        self._last: tuple[Message, Tensor, torch.Generator] | None = None
        self._is_mixed = False

    def measure(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """Values and moments of one micro-batch; for a plan that is not private, values alone."""
        if not self._defense.plan_is_private:
            return observe_values(message, inputs)
        return self._defense.observe(message, inputs, generator)

    def add(
        self,
        message: Message,
        inputs: Tensor,
        generator: torch.Generator,
        past: float = 1.0,
        fresh: float = 1.0,
    ) -> None:
        """Multiply what there is by `past`, and add the micro-batch `fresh` times."""
        part = self.measure(message, inputs, generator)
        self._last = message, inputs, generator
        if self._sum is None:
            self._sum = part
            return
        values, moments = self._sum
        check_structure(part[0], values, "message(inputs)", "the micro-batches before")
        self._sum = _mix(values, past, part[0], fresh), _joined(moments, past, part[1], fresh)
        self._is_mixed = True

    def finish(self) -> tuple[Tensors, Moments]:
        """Values and moments of the whole step."""
        assert self._sum is not None
        assert self._last is not None
        values, moments = self._sum
        if self._defense.reads_moments and not self._defense.plan_is_private:
            return values, self._defense.public_moments(*self._last)
        if not self._is_mixed:
            return values, moments
        squares = Moments.of_values(values, moments.input_size).squared_values
        return values, replace(moments, squared_values=squares)


def observe_values(message: Message, inputs: Tensor) -> tuple[Tensors, Moments]:
    """The message's values and the moments that need no derivative."""
    values = checked_values(message, inputs)
    return values, Moments.of_values(values, inputs.numel())


def checked_values(message: Message, inputs: Tensor) -> Tensors:
    """The message's values; what is wrong with them is an error."""
    check_inputs(inputs, tokens=takes_tokens(message))
    with explained(message, inputs):
        values = values_of(message, inputs)
    check_values(values, "message(inputs)")
    check_finite_message(message, inputs, values)
    return values


def _joined(a: Moments, past: float, b: Moments, fresh: float) -> Moments:
    """Moments of the sum but for the squares of its values, which `finish` takes."""
    return replace(
        a,
        squared_sensitivities=_mix_known(
            a.squared_sensitivities, past**2, b.squared_sensitivities, fresh**2
        ),
        second_squares=_mix_known(a.second_squares, past**2, b.second_squares, fresh**2),
        squared_example_values=_mix_known(
            a.squared_example_values, past, b.squared_example_values, fresh
        ),
        input_size=a.input_size + b.input_size,
        hidden=max(a.hidden, b.hidden),
    )


def _mix(a: Tensors, weight_a: float, b: Tensors, weight_b: float) -> Tensors:
    return {name: (weight_a * a[name]).add_(b[name], alpha=weight_b) for name in a}


def _mix_known(
    a: Tensors | None, weight_a: float, b: Tensors | None, weight_b: float
) -> Tensors | None:
    """Sums of squares; one that gets too small for a float stays the least positive number."""
    if a is None or b is None:
        return None
    mixed = _mix(a, weight_a, b, weight_b)
    for name, square in mixed.items():
        least = torch.finfo(square.dtype).tiny
        lost = (square < least) & ((a[name] > 0) | (b[name] > 0))
        square.masked_fill_(lost, least)
    return mixed
