"""What the message says of each entry, under the mechanism that is known or planned again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._tensors import flatten
from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import separates, takes_tokens
from gradveil.sensitivity import Estimator, Moments, PerExample, Sketch, measure_with_values

from ._likelihood import read, with_least_noise
from ._matching import Evidence
from ._observation import Observation


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
    reading = read(mechanism, sent, realised=observation.mechanism is not None)
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


FLOOR = 1.0
"""The least planned standard deviation, as a share of their root mean square. A plan at an estimate
is not the client's: small levels are wrong by large factors, and trusting them made the attack
worse than the unaware one. At 1, only entries that are noisier than the mean count less. So are the
zeros where the attacker's own plan would prune: the client's may have kept and noised them."""


def plan_channel(
    observation: Observation,
    labels: Tensor,
    estimate: Tensor,
    probes: int,
    generator: torch.Generator,
) -> Channel:
    """The channel of the known mechanism, or of the defense's plan at the estimate."""
    message = observation.message(labels)
    values = message(estimate)
    sent = {name: observation.sent[name] for name in values}
    mechanism, sensitivities = observation.mechanism, None
    if mechanism is None or _prunes_by_sensitivity(observation):
        moments = Moments.of_values(values, estimate.numel())
        if _looks_at_sensitivities(observation.defense):
            estimator: Estimator = Sketch(probes)
            if separates(message, estimate) and not takes_tokens(message):
                estimator = PerExample(probes)
            moments = measure_with_values(
                message,
                estimate,
                estimator,
                generator=generator,
            )[1]
            sensitivities = moments.squared_sensitivities
        if mechanism is None:
            assert observation.defense is not None
            given = observation.defense.given(moments, message, estimate, generator)
            planned = observation.defense.mechanism(given.shape, given.moments)
            mechanism = with_least_noise(planned, FLOOR)
    return open_channel(observation, sent, mechanism, sensitivities)


def depends_on_inputs(observation: Observation) -> bool:
    """Whether the attacker's plan changes with its estimate."""
    defense = observation.defense
    if observation.mechanism is not None and not _prunes_by_sensitivity(observation):
        return False
    return defense is None or defense.about.varies


def _looks_at_sensitivities(defense: Defense | None) -> bool:
    return defense is not None and defense.about.needs.sensitivities


def _prunes_by_sensitivity(observation: Observation) -> bool:
    defense = observation.defense
    return (
        defense is not None
        and defense.about.prunes_by_sensitivity
        and not observation.plan_is_public
    )
