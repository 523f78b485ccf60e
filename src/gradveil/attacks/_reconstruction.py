"""What an attack returns."""

from dataclasses import dataclass, field

from torch import Tensor

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
    history: list[tuple[int, float]] = field(default_factory=list)
    """(step, best cost so far), every so many steps."""
    status: str = FINISHED
    is_certain: bool = False
    """Whether the attack's own equations confirm it, so that no other need be looked for."""
