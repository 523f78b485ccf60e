"""The base class of all attacks, and what they return."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradveil._checks import (
    check_count,
    check_not_negative,
    check_optional_callable,
    check_positive,
)

from ._observation import Observation

FINISHED, TIME_BUDGET, INTERRUPTED = "finished", "time budget", "interrupted"
"""The values of `Reconstruction.status`."""


@dataclass(frozen=True)
class Reconstruction:
    """The attacker's best guess, picked by its own cost: no attack sees the truth.

    >>> import torch
    >>> Reconstruction(torch.zeros(1, 3), torch.tensor([1]), loss=0.5).status
    'finished'
    """

    inputs: Tensor
    """Shape (batch size, *input shape), in normalised units."""
    targets: Tensor
    """The labels, or other targets, that it assumed or found, one row for each example."""
    loss: float
    """The attack's own cost at `inputs`."""
    status: str = FINISHED
    is_certain: bool = False
    """Whether the attack's own equations confirm it, so that no other need be looked for."""


Progress = Callable[[int, int, float], None]
"""Called with (step, steps in all, best own cost so far)."""

Own = TypeVar("Own", bound="Attack")


class Attack(ABC):
    """A way to rebuild the private batch from an Observation: implement `__call__`.

    >>> class Blank(Attack):
    ...     def __call__(self, observation, generator=None):
    ...         shape = (observation.batch_size, *observation.input_shape)
    ...         return Reconstruction(torch.zeros(shape), observation.labels, loss=0.0)
    >>> Blank()(seen).inputs
    tensor([[0., 0., 0.]])
    """

    knows_defense: bool = False
    """Whether it makes use of the defense or the mechanism: only then it is told of them."""

    needs_defense: bool = True
    """Whether one that makes use of the defense cannot do without that knowledge."""

    @abstractmethod
    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """All randomness comes from the generator."""

    def configured(
        self: Own,
        steps: int | None = None,
        time_budget: float | None = None,
        progress: Progress | None = None,
    ) -> Own:
        """The attack with other settings; `None`, and what it does not have, stays as it is.

        A time budget never extends a shorter one that the attack has.
        """
        if not is_dataclass(self):
            return self
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        if time_budget is not None and own.get("time_budget") is not None:
            time_budget = min(time_budget, own["time_budget"])
        given = {"steps": steps, "time_budget": time_budget, "progress": progress}
        changes: dict[str, Any] = {k: v for k, v in given.items() if k in own and v is not None}
        return replace(self, **changes) if changes else self


@dataclass(frozen=True, kw_only=True)
class Search(Attack):
    """An attack that takes its time, and can be told how much it has.

    Of its settings whole numbers are counts, a rate `lr` is above 0, other numbers not below.

    Args:
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
    """

    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for own in fields(self):
            if isinstance(own.default, int | float):
                number = check_positive if own.name == "lr" else check_not_negative
                check = check_count if isinstance(own.default, int) else number
                check(getattr(self, own.name), own.name)
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")
        check_optional_callable(self.progress, "progress", "Give a function, or None.")
