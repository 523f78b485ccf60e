"""What an attacker that knows the defense can say of each entry of the message."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._typing import Level, Tensors
from gradveil.defenses import Cached, Defense, GradientPruning, OptimalPruning
from gradveil.defenses._selection import flatten
from gradveil.mechanisms import AnyMechanism, Mechanism, RoundingMechanism
from gradveil.mechanisms._levels import level_of

from .._observation import Observation
from ._matching import Evidence

MARGIN = 1.5
"""By how much a pruned entry's limit is widened: the client's sensitivities are estimates, too."""


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
    row = flatten(sent)
    if isinstance(mechanism, RoundingMechanism):
        half = _row(mechanism.step, sent) / 2
        zero = torch.zeros_like(row)
        unclipped = torch.full_like(row, torch.inf)
        return Channel(row, zero, row - half, row + half, zero.bool(), unclipped)
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            "Parameter `observation` should have a Mechanism or a RoundingMechanism, or a defense"
            f" that plans one. Found {type(mechanism).__name__}."
        )
    pruned = _pruned(row, mechanism, sent, observation)
    limit = _limits(observation, row, pruned, sensitivities)
    silent = pruned & limit.isinf()
    low, high = (torch.where(pruned & ~silent, end, row) for end in (-limit, limit))
    std = torch.where(pruned, 0.0, _row(mechanism.std, sent))
    clip = torch.inf if mechanism.clip is None else mechanism.clip
    return Channel(row, std, low, high, silent, _row(clip, sent))


def _pruned(row: Tensor, mechanism: Mechanism, sent: Tensors, observation: Observation) -> Tensor:
    """Zeros in the message that may have been pruned; of a known mask its zeros, noisy or not."""
    if mechanism.keep is None:
        return torch.zeros_like(row, dtype=torch.bool)
    keep = _row(mechanism.keep, sent)
    known = observation.mechanism is not None
    if known:
        return (keep == 0) | ((keep < 1) & (row == 0))
    return (row == 0) & (keep < 1).any()


def _limits(
    observation: Observation, row: Tensor, pruned: Tensor, sensitivities: Tensors | None
) -> Tensor:
    """τ_i with |g_i| ≤ τ_i for a pruned entry; infinite where pruning says nothing of its value.

    Without noise the least kept entry is the threshold. With it, that of every kept entry g + std ε
    is above the threshold at least half of the time, so their median is a safe limit. A threshold
    on sensitivities is known only as well as these are at the attacker's estimate: at a poor one
    half of the true values were beyond it, so no limit is below the median of what was kept.
    """
    nothing = torch.full_like(row, torch.inf)
    defense, kept = innermost(observation.defense), row[~pruned].abs()
    if observation.plan_is_public or not bool(pruned.any()) or len(kept) == 0:
        return nothing
    if isinstance(defense, GradientPruning):
        least = kept.min() if defense.noise is None else kept.median()
        return torch.full_like(row, float(least))
    if isinstance(defense, OptimalPruning) and sensitivities is not None:
        sensitivity = flatten(sensitivities).sqrt()
        ratios = (sensitivity[~pruned] / kept).sort().values
        share = 0.98 if defense.noise is None else 0.5
        threshold = ratios[int(share * (len(ratios) - 1))].clamp(min=1e-30)
        return (MARGIN * sensitivity / threshold).clamp(min=float(kept.median()))
    return nothing


def innermost(defense: Defense | None) -> Defense | None:
    """The defense that plans: what `Cached` wraps."""
    return defense.defense if isinstance(defense, Cached) else defense


def _row(level: Level, sent: Tensors) -> Tensor:
    rows = {n: torch.as_tensor(level_of(level, n)).to(v).expand(v.shape) for n, v in sent.items()}
    return flatten(rows)


def _towards(start: Tensor, end: Tensor, share: float) -> Tensor:
    """Part of the way; an infinite end is reached at once."""
    way = torch.where(end.isinf(), 0.0, end - start)
    return torch.where(end.isinf(), end, start + share * way)
