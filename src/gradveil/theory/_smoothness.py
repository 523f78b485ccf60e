"""Whether derivatives show all that a message tells of its inputs."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._typing import Tensors
from gradveil.messages import Message, values_of
from gradveil.sensitivity import directional_derivatives, other_inputs, rounding_of, spread_of

STEP = 0.1
"""Of the spread of the inputs: the distance over which derivatives must explain the change."""

ENOUGH = 0.5
"""The least share of the change that derivatives must explain for a bound to hold."""

DIRECTIONS = 3


class Smoothness(NamedTuple):
    """What derivatives see of a message.

    The Cramér-Rao argument needs a message that changes smoothly with the inputs. Where it moves
    without a derivative, or jumps (a unit switches on, another pixel wins the pooling), the
    information is larger than derivatives say, and the bound too large.
    """

    hidden: int
    """Entries without a derivative that move with the inputs all the same."""
    explained: float
    """(Σ w_i (h ∂_v g_i)²) / (Σ w_i (g_i(x + h v) - g_i(x))²), at most 1."""

    @property
    def reason(self) -> str:
        """Why a bound does not hold; empty where it does."""
        if self.hidden:
            return (
                f"{self.hidden} entries move with the inputs although they have no derivative here"
                " (detach, rounding, an index, units that switch on)"
            )
        if self.explained < ENOUGH:
            return (
                f"the message jumps: derivatives explain {self.explained:.0%} of how it changes"
                f" over a step of {STEP:g} of the inputs' spread (ReLU, max-pooling)"
            )
        return ""


def smoothness(
    message: Message,
    inputs: Tensor,
    values: Tensors,
    weights: Tensors,
    generator: torch.Generator,
) -> Smoothness:
    """Compare derivatives with differences, in the weights that entries have in J_F.

    Where the message does not accept inputs that are a small step away (an index out of range),
    nothing is proven: all of it counts as hidden.

    Args:
        message: What the client would send.
        inputs: The batch at which it is looked at.
        values: The message there.
        weights: w_i ≥ 0 of `Mechanism.information`; infinite where an entry is sent bare.
        generator: For the directions.
    """
    like = inputs.new_empty(()).expand(DIRECTIONS, *inputs.shape)
    directions = STEP * spread_of(inputs) * normal_like(like, generator)
    tangents = directional_derivatives(message, inputs, directions)
    steps = _accepted(message, (inputs + direction for direction in directions))
    others = _accepted(message, other_inputs(inputs, generator))
    if len(steps) < DIRECTIONS:
        return Smoothness(sum(value.numel() for value in values.values()), 0.0)
    rounding = rounding_of(values)
    hidden = 0
    for name, weight in weights.items():
        moved = torch.stack([(other[name] - values[name]).abs() for other in steps + others])
        hidden += _hidden(moved > rounding, tangents[name], weight)
    return Smoothness(hidden, _explained(values, tangents, weights, steps))


def _accepted(message: Message, moved: Iterable[Tensor]) -> list[Tensors]:
    """The message at those inputs that it accepts."""
    found = []
    for inputs in moved:
        try:
            found.append(values_of(message, inputs))
        except (RuntimeError, ValueError, IndexError):
            continue
    return found


def _hidden(moves: Tensor, tangents: Tensor, weight: Tensor) -> int:
    """How many entries are sent, have no derivative, and move for some of the other inputs."""
    return int(((weight > 0) & ~tangents.any(0) & moves.any(0)).sum())


def _explained(values: Tensors, tangents: Tensors, weights: Tensors, steps: list[Tensors]) -> float:
    seen = moved = 0.0
    for name, weight in weights.items():
        finite = weight.masked_fill(weight.isinf(), 0.0).double()
        seen += float((tangents[name].double().square() * finite).sum())
        for step in steps:
            moved += float(((step[name] - values[name]).double().square() * finite).sum())
    return min(1.0, seen / moved) if moved > 0 else 1.0
