"""Moments with something else that a plan looks at."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from gradveil._typing import Tensors
from gradveil.sensitivity import Moments


@dataclass(frozen=True)
class NotedMoments(Moments):
    """Moments of one batch, with a note on some of the parameters."""

    notes: Mapping[str, Tensor] = field(default_factory=dict)
    """By parameter name, whatever the defense that made them needs."""


def noted(values: Tensors, input_size: int, notes: Mapping[str, Tensor]) -> NotedMoments:
    """The moments of these values, with notes."""
    squares = Moments.of_values(values, input_size).squared_values
    return NotedMoments(squares, None, input_size, notes=notes)


def notes_of(moments: Moments, who: str) -> Mapping[str, Tensor]:
    """The notes; an error where there are none."""
    if not isinstance(moments, NotedMoments):
        raise TypeError(
            f"Parameter `moments` should be those that {who} itself observes: its plan needs more"
            f" than moments. Found {type(moments).__name__}. Call the defense on a message."
        )
    return moments.notes
