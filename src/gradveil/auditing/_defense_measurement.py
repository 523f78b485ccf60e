"""What one defense guarantees and costs, without attacking it."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch

from gradveil._random import numbered_stream
from gradveil._tensors import total
from gradveil._timing import time_ratios
from gradveil._typing import Tensors
from gradveil.attacks import Lineups
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.messages import size_in_bytes, values_of
from gradveil.theory import utility

from ._bounds import Guarantee, PopulationBatch, guarantee_of, population_of
from ._privacy import USUAL, PrivacyResult, Releases, privacy_of
from ._result import BoundResult, LayerResult
from ._subject import Subject
from ._told_apart import CANDIDATES, ToldApart, lineups_of, told_apart

TIMINGS = 9
"""Pairs of a plain and a defended message that are timed."""


@dataclass(frozen=True)
class Measurement:
    """What is measured of a defense without attacks and training."""

    utility_first: float | None
    utility_second: float | None
    bound: BoundResult | None
    no_guarantee: str
    formal_privacy: str
    bytes_sent: int
    time_ratio: float
    layers: tuple[LayerResult, ...]
    told_apart: ToldApart | None
    privacy: PrivacyResult | None


@dataclass(frozen=True)
class Shared:
    """What all defenses of an audit have in common at one model, measured once."""

    lineups: Lineups | None
    """Whom to tell apart."""
    population: tuple[PopulationBatch, ...]
    """Over which bounds are averaged."""

    @staticmethod
    def of(subject: Subject, seed: int) -> "Shared":
        """For all defenses that are measured at this model with this seed."""
        return Shared(lineups_of(subject, seed), tuple(population_of(subject)))


def measure_defense(
    subject: Subject,
    defense: Defense,
    seed: int,
    releases: Releases = USUAL,
    shared: Shared | None = None,
) -> Measurement:
    """Plan on the first batch and read everything off the mechanism.

    Args:
        subject: Model and data.
        defense: With its amounts.
        seed: Of everything random.
        releases: For which ε is stated.
        shared: `Shared.of(subject, seed)`, which saves time where several defenses are measured.
    """
    shared = Shared.of(subject, seed) if shared is None else shared
    inputs, targets = subject.batch(0)
    message, generator = subject.message(targets), numbered_stream(seed)
    values, mechanism, sent = deepcopy(defense).respond(message, inputs, generator)
    first, second = (None, None) if mechanism is None else _utilities(values, mechanism)
    guarantee = guarantee_of(subject, defense, seed, population=shared.population)
    told = told_apart(subject, defense, seed, shared.lineups)
    return Measurement(
        utility_first=first,
        utility_second=second,
        bound=guarantee.bound,
        no_guarantee=guarantee.reason,
        formal_privacy=formal_privacy(defense, guarantee),
        bytes_sent=size_in_bytes(sent),
        time_ratio=_time_ratio(subject, defense),
        layers=_layers(values, mechanism),
        told_apart=told,
        privacy=privacy_of(defense, releases, told.candidates if told else CANDIDATES),
    )


def _utilities(values: Tensors, mechanism: AnyMechanism) -> tuple[float, float]:
    """U1 and U2 over the squared norm of the message."""
    power = float(total(value.square() for value in values.values()))
    first, second = utility(values, mechanism)
    return (first / power, second / power) if power else (1.0, 0.0)


def formal_privacy(defense: Defense, guarantee: Guarantee) -> str:
    """Which formal guarantee a defense carries, in words."""
    if defense.formal_privacy is not None:
        return defense.formal_privacy
    if guarantee.bound is None:
        return f"none: {guarantee.reason or 'nothing is bounded'}"
    if defense.clamp is not None:
        return (
            "no (ε, δ): entries of the batch's message are clamped, not the norm of each example's"
        )
    return "no (ε, δ): nothing limits what one example can change"


def _layers(values: Tensors, mechanism: AnyMechanism | None) -> tuple[LayerResult, ...]:
    """Nothing for a defense without a mechanism."""
    if mechanism is None:
        return ()
    return tuple(_layer(name, value, mechanism) for name, value in values.items())


def _layer(name: str, value: torch.Tensor, mechanism: AnyMechanism) -> LayerResult:
    std: Any = getattr(mechanism, "std", 0.0)
    keep: Any = mechanism.keep if isinstance(mechanism, Mechanism) else None
    std, keep = (x[name] if isinstance(x, dict) else x for x in (std, keep))
    noise = torch.as_tensor(std, dtype=torch.float64).square().mean().sqrt()
    kept = torch.as_tensor(1.0 if keep is None else keep, dtype=torch.float64).mean()
    return LayerResult(name, value.numel(), float(noise), float(kept))


def _time_ratio(subject: Subject, defense: Defense) -> float:
    """The seconds of a defended message over those of the plain one, timed in turns."""
    inputs, targets = subject.batch(0)
    message, own = subject.message(targets), deepcopy(defense)
    ratios = time_ratios(
        lambda: values_of(message, inputs),
        {"defended": lambda: own(message, inputs, numbered_stream(0))},
        TIMINGS,
    )
    return ratios["defended"]
