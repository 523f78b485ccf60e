"""What a sent message tells someone who knows the mechanism, entirely or nearly."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gradveil._typing import Level, Tensors

from ._doubt import Doubt
from ._levels import level_of
from ._protocol import AnyMechanism


@dataclass(frozen=True)
class Reading:
    """Where the values can be, entry by entry, given what was sent.

    clip(g_i) is in [low_i, high_i], seen through noise of standard deviation std_i.

    >>> from gradveil import Mechanism
    >>> type(Mechanism(std=0.5).read({"w": torch.ones(2)})).__name__
    'Reading'
    """

    low: Tensors
    high: Tensors
    std: Tensors
    """0 where an entry was pruned: what it says does not depend on noise."""
    clip: Tensors
    """The thresholds P of clamping to [-P, P] before the noise; infinite where there are none."""
    pruned: Tensors
    """Where the value was not sent, or may not have been: its interval is the sent 0 itself, and
    what 0 says depends on why it was pruned, which the defense knows (`pruned_limits`)."""


def all_sent(low: Tensors, high: Tensors, std: Tensors) -> Reading:
    """The reading of a message in which nothing was clamped or pruned."""
    return Reading(
        dict(low),
        dict(high),
        std,
        clip={name: torch.full_like(y, torch.inf) for name, y in std.items()},
        pruned={name: torch.zeros_like(y, dtype=torch.bool) for name, y in std.items()},
    )


@runtime_checkable
class ReadableMechanism(AnyMechanism, Protocol):
    """A mechanism that can be read backwards, from what was sent to the values."""

    def read(self, sent: Tensors, realised: bool = True) -> Reading:
        """What was sent, as a statement on each entry of the values.

        Args:
            sent: What left the client.
            realised: Whether this very mechanism was applied. One that was planned from an
                estimate has levels like it, but another mask.
        """
        ...

    def with_least_noise(self, share: float) -> "ReadableMechanism":
        """No standard deviation below this share of their root mean square; else the same."""
        ...


@runtime_checkable
class LikelihoodMechanism(AnyMechanism, Protocol):
    """A mechanism that says how likely it is to have sent something."""

    def log_likelihood(self, values: Tensors, sent: Tensors, doubt: Doubt | None = None) -> Tensor:
        """log p(sent | values), a float64 number, with all terms that depend on the mechanism.

        Args:
            values: What the message would be.
            sent: What left the client.
            doubt: `None` if this very mechanism was applied; otherwise how well it is known.
        """
        ...

    def doubt(self, other: Any, like: Tensors) -> Doubt:
        """How far two plans from the same values are apart."""
        ...


def as_tensors(level: Level, like: Mapping[str, Tensor]) -> Tensors:
    """A level as one tensor for each parameter, in its shape, dtype and place."""
    levels = {n: (level_of(level, n), v) for n, v in like.items()}
    return {
        n: torch.as_tensor(found, dtype=v.dtype, device=v.device).expand(v.shape)
        for n, (found, v) in levels.items()
    }
