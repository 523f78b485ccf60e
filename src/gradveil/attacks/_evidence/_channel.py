"""What an attacker that knows the defense can say of each entry of the message."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._tensors import flatten
from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism, ReadableMechanism

from .._observation import Observation
from ._matching import Evidence


@dataclass(frozen=True)
class Channel:
    """The sent row with the final interval of each entry, and what leads up to it."""

    sent: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    silent: Tensor
    """Where an entry tells nothing: pruned for reasons that do not depend on its value."""
    clip: Tensor
    """The thresholds of clipping before the noise, infinite where there are none."""

    def evidence(self, opening: float, looseness: float, inputs: int) -> Evidence:
        """The evidence with intervals opened by a share of their width.

        At opening 0 every entry counts as sent as it is, which is what an unaware attack assumes
        and has few local minima; at 1 the intervals are those of the mechanism. An entry without
        noise gets the variance looseness · ‖y‖² / (2 `inputs`), so that a relative misfit of
        `looseness` costs as much as one unit of energy for each entry of the inputs.
        """
        power = self.sent.square().sum()
        signal = (power - self.std.square().sum()).clamp(min=1e-2 * power)
        variance = self.std.square() + looseness * signal / (2 * inputs)
        weight = variance.clamp(min=torch.finfo(variance.dtype).tiny).reciprocal()
        return Evidence(
            _towards(self.sent, self.low, opening),
            _towards(self.sent, self.high, opening),
            torch.where(self.silent, (1 - opening) * weight, weight),
            self.clip,
        )

    def unexplained(self, evidence: Evidence, values: Tensor) -> float:
        """The share of the signal's power by which values miss the evidence, beyond the noise."""
        noise = self.std.square()
        misses = evidence.residual(values).square() * (evidence.weight > 0)
        expected = noise.sum() + 3 * (2 * noise.square().sum()).sqrt()
        power = self.sent.square().sum()
        signal = (power - noise.sum()).clamp(min=1e-2 * power)
        return float(((misses.sum() - expected) / signal).clamp(min=0))


def open_channel(
    observation: Observation, sent: Tensors, mechanism: AnyMechanism, sensitivities: Tensors | None
) -> Channel:
    """The channel of a mechanism that the attacker knows or has planned itself.

    Args:
        observation: For the defense and for whether its plan is public.
        sent: What was sent, in the order of the message's names.
        mechanism: The mechanism.
        sensitivities: E‖∇g_i‖² at the attacker's estimate, where the defense prunes by them.
    """
    if not isinstance(mechanism, ReadableMechanism):
        raise TypeError(
            "Parameter `observation` should have a Mechanism or a RoundingMechanism, or a defense"
            f" that plans one. Found {type(mechanism).__name__}. Give it the methods `read` and"
            " `with_least_noise`."
        )
    row = flatten(sent)
    reading = mechanism.read(sent, realised=observation.mechanism is not None)
    pruned = flatten(reading.pruned)
    limit = _limits(observation, row, pruned, sensitivities)
    silent = pruned & limit.isinf()
    limited = pruned & ~silent
    low = torch.where(limited, -limit, flatten(reading.low))
    high = torch.where(limited, limit, flatten(reading.high))
    return Channel(row, flatten(reading.std), low, high, silent, flatten(reading.clip))


def _limits(
    observation: Observation, row: Tensor, pruned: Tensor, sensitivities: Tensors | None
) -> Tensor:
    """τ_i with |g_i| ≤ τ_i for a pruned entry; infinite where pruning says nothing of its value."""
    defense = observation.defense
    nothing_kept = bool(pruned.all())
    if defense is None or observation.plan_is_public or nothing_kept or not bool(pruned.any()):
        return torch.full_like(row, torch.inf)
    slopes = None if sensitivities is None else flatten(sensitivities).sqrt()
    return defense.pruned_limits(row, pruned, slopes)


def _towards(start: Tensor, end: Tensor, share: float) -> Tensor:
    """Part of the way; an infinite end is reached at once."""
    way = torch.where(end.isinf(), 0.0, end - start)
    return torch.where(end.isinf(), end, start + share * way)
