"""The plan that an attacker computes, with its estimate in place of the client's batch."""

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism, ReadableMechanism
from gradveil.messages import Message, separates, takes_tokens
from gradveil.sensitivity import Estimator, Moments, PerExample, Sketch, measure_with_values

from .._observation import Observation
from ._channel import Channel, open_channel

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
        moments = _moments(observation.defense, message, values, estimate)
        if _looks_at_sensitivities(observation.defense):
            estimator: Estimator = Sketch(probes)
            if separates(message, estimate) and not takes_tokens(message):
                estimator = PerExample(probes)
            moments = measure_with_values(
                message,
                estimate,
                estimator,
                generator=generator,
                examples=_looks_at_curvature(observation.defense),
            )[1]
            sensitivities = moments.squared_sensitivities
        mechanism = mechanism or _own_plan(observation, moments)
    return open_channel(observation, sent, mechanism, sensitivities)


def _moments(
    defense: Defense | None, message: Message, values: Tensors, estimate: Tensor
) -> Moments:
    if defense is None:
        return Moments.of_values(values, estimate.numel())
    return defense.moments_at(message, values, estimate)


def depends_on_inputs(observation: Observation) -> bool:
    """Whether the attacker's plan changes with its estimate."""
    defense = observation.defense
    if observation.mechanism is not None and not _prunes_by_sensitivity(observation):
        return False
    return defense is None or defense.plan_varies


def _own_plan(observation: Observation, moments: Moments) -> AnyMechanism:
    assert observation.defense is not None
    mechanism = observation.defense.plan(moments)
    if not isinstance(mechanism, ReadableMechanism):  # an error, as soon as it is read
        return mechanism
    return mechanism.with_least_noise(FLOOR)


def _looks_at_sensitivities(defense: Defense | None) -> bool:
    return defense is not None and defense.needs_sensitivities


def _looks_at_curvature(defense: Defense | None) -> bool:
    return defense is not None and defense.needs_curvature


def _prunes_by_sensitivity(observation: Observation) -> bool:
    defense = observation.defense
    return defense is not None and defense.prunes_by_sensitivity and not observation.plan_is_public
