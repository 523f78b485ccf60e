"""What an audit measures, as cells: training, attacks, identification, bound, details.

A cell names its subject by a fingerprint. The subject itself, and what is known of it whatever the
defense, is in the `Laboratory` that the runner hands to each process.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from gradveil._random import numbered_stream
from gradveil._runner import Cell, Settings
from gradveil.attacks import Attack, CallableAttack, Lineups, ThreatModel
from gradveil.catalog import build_defense, spec_of
from gradveil.defenses import Defense, GradientNoise
from gradveil.federated import Federation
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments, measure
from gradveil.theory import fisher_trace, trace_error

from .._result import Releases
from .._subject import Audited
from ._attacks import run_attacks
from ._bounds import PopulationBatch, guarantee_of, population_of
from ._details import lineups_of, measure_defense, told_apart
from ._fingerprint import fingerprint
from ._guess import BlindGuess, blind_guess
from ._plans import PublicPlans, moving, planned, warmed
from ._training import DivergedError, evaluate_on, make_pool, moments_of, trained_model

PLAIN = "no-defense"
TRIALS = 128
"""Messages by which the exact attacker is measured."""
PRIVATE_SHARE = 8
"""A plan that depends on the batch is made for each message and candidate: so many times fewer."""


def by_spec(attacks: Sequence[Attack]) -> dict[str, Attack]:
    """The attacks by their specifications; repeated ones once."""
    return {spec_of(a.function if isinstance(a, CallableAttack) else a): a for a in attacks}


class Laboratory:
    """A subject, and what is known of it whatever the defense, each part when it is first needed.

    Args:
        subject: Model and data; the model is copied, so that nobody else changes it.
        federation: In which it is trained.
        attacks: By their specifications.
        threat: What attackers are granted.
        seed: Of everything random.
    """

    def __init__(
        self,
        subject: Audited,
        federation: Federation,
        attacks: Mapping[str, Attack],
        threat: ThreatModel,
        seed: int,
    ) -> None:
        self.subject = replace(subject, model=deepcopy(subject.model))
        self.federation, self.attacks = federation, dict(attacks)
        self.threat, self.seed = threat, seed
        self._lineups: dict[int, Lineups | None] = {}

    def after(self, defense: str, rounds: int) -> "Laboratory":
        """The same for the model after some rounds of training under a defense."""
        if not rounds:
            return self
        own = self.in_training(defense)
        model = trained_model(self.subject, own, self.federation, 0, rounds)
        later = replace(self.subject, model=model)
        return Laboratory(later, self.federation, self.attacks, self.threat, self.seed)

    def lineups(self, trials: int) -> Lineups | None:
        """Whom to tell apart, for so many messages."""
        if trials not in self._lineups:
            self._lineups[trials] = lineups_of(self.subject, self.seed, trials)
        return self._lineups[trials]

    @cached_property
    def population(self) -> list[PopulationBatch]:
        """Over which bounds are averaged."""
        return population_of(self.subject)

    @cached_property
    def guess(self) -> BlindGuess:
        """What an attacker has who sees no message."""
        return blind_guess(self.subject, self.threat.labels == "known")

    @cached_property
    def moments(self) -> Moments:
        """Over public batches."""
        return Moments.average(
            measure(self.subject.message(y), x, "auto", generator=numbered_stream(self.seed, k))
            for k, (x, y) in enumerate(self.subject.population())
        )

    @cached_property
    def _plans(self) -> PublicPlans:
        return PublicPlans(self.subject, self.seed)

    def defense(self, text: str) -> Defense:
        """A defense with its public plan made; import paths are those of the user's own objects."""
        built = planned(self.subject, build_defense(text, allow_imports=True))
        return warmed(self.subject, built, self.seed, self._plans)

    def in_training(self, text: str) -> Defense:
        """The same as all clients of a training use it; a plan serves for 20 rounds."""
        return moving(self.defense(text), 2 * self.federation.clients)


def train(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """The loss and the accuracy after a defended training, for each seed."""
    subject, defense = laboratory.subject, settings["defense"]
    draws = 1 if laboratory.defense(defense).about.undefended else settings["seeds"]
    found = [_after(laboratory, defense, seed) for seed in range(draws)]
    held_out = make_pool(subject, laboratory.federation.clients).held_out
    return {
        "losses": [loss if math.isfinite(loss) else None for loss, _ in found],
        "accuracies": [accuracy for _, accuracy in found],
        "before": evaluate_on(subject, subject.model, held_out)[0],
    }


def _after(laboratory: Laboratory, defense: str, seed: int) -> tuple[float, float | None]:
    """Infinite where training diverged: weights or messages that are not finite."""
    subject, federation = laboratory.subject, laboratory.federation
    own = laboratory.in_training(defense)
    try:
        model = trained_model(subject, own, federation, seed, federation.rounds)
    except DivergedError:
        return math.inf, 0.0
    return evaluate_on(subject, model, make_pool(subject, federation.clients).held_out)


def attack(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """Every attack on the messages of the private batches, at one moment of the training."""
    now = laboratory.after(settings["defense"], settings["round"])
    attacks = {spec: laboratory.attacks[spec] for spec in settings["attacks"]}
    results, notes = run_attacks(
        now.subject,
        now.defense(settings["defense"]),
        attacks,
        now.threat,
        settings["seeds"],
        settings["seed"],
        now.guess,
    )
    return {"attacks": [asdict(result) for result in results], "notes": notes}


def identify(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """What the exact attacker reaches, at one moment of the training."""
    now = laboratory.after(settings["defense"], settings["round"])
    defense = now.defense(settings["defense"])
    fewer = PRIVATE_SHARE if defense.about.private else 1
    lineups = now.lineups(-(-settings["trials"] // fewer))
    found = told_apart(now.subject, defense, settings["seed"], lineups)
    return {"told_apart": None if found is None else asdict(found)}


def bound(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """The reference error of one point: `trace_error` of the noise after matching, public moments.

    Whether it is a bound for this model says `smooth`. A defense that clips or clamps, or that
    plans from the batch, has none here.
    """
    subject, defense = laboratory.subject, laboratory.defense(settings["defense"])
    if subject.tokens or defense.about.private or defense.about.formal_privacy is not None:
        return {"bound": None}
    inputs, targets = subject.batch(0)
    message = subject.message(targets)
    mechanism = defense.respond(message, inputs, numbered_stream(laboratory.seed)).mechanism
    if not isinstance(mechanism, Mechanism) or mechanism.clip:
        return {"bound": None}
    moments = laboratory.moments.judged()
    trace = fisher_trace(moments, mechanism)
    if not math.isfinite(trace):
        return {"bound": None}
    size = moments.input_size
    return {"bound": trace_error(trace, size, subject.prior, matched=subject.batch_size) / size}


def smooth(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """Why reference errors are no bounds for this model, found with isotropic noise; or nothing."""
    subject, noise = laboratory.subject, GradientNoise(1.0)
    if subject.tokens:
        return {"reason": "bounds are on the error of numbers"}
    found = guarantee_of(
        subject, noise, laboratory.seed, population=laboratory.population, full=False
    )
    return {"reason": found.reason}


def detail(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """Everything that is measured of one defense without attacks and training."""
    defense = laboratory.defense(settings["defense"])
    return asdict(
        measure_defense(
            laboratory.subject, defense, settings["seed"], population=laboratory.population
        )
    )


@dataclass(frozen=True)
class Plan:
    """The settings that all cells of one audit share."""

    subject: str
    """Its fingerprint."""
    federation: Federation
    attacks: tuple[str, ...]
    threat: ThreatModel
    releases: Releases
    seeds: int
    training_seeds: int
    seed: int

    @classmethod
    def of(
        cls, laboratory: Laboratory, releases: Releases, seeds: int, training_seeds: int
    ) -> "Plan":
        """What is measured in a laboratory."""
        return cls(
            fingerprint(laboratory.subject),
            laboratory.federation,
            tuple(laboratory.attacks),
            laboratory.threat,
            releases,
            seeds,
            training_seeds,
            laboratory.seed,
        )

    @property
    def moments(self) -> tuple[int, ...]:
        """The rounds at which models are attacked."""
        return moments_of(self.federation.rounds)

    def train(self, defense: str) -> Cell:
        """A defended training; none without seeds."""
        return self._cell(train, defense, seeds=self.training_seeds, **self._training())

    def attack(self, defense: str, moment: int = 0) -> Cell:
        """All attacks, at one moment of the training."""
        shared = {"attacks": list(self.attacks), "threat": asdict(self.threat), "seeds": self.seeds}
        return self._cell(attack, defense, **shared, **self._moment(moment))

    def identify(self, defense: str, moment: int = 0) -> Cell:
        """The exact attacker, at one moment."""
        return self._cell(identify, defense, trials=TRIALS, **self._moment(moment))

    def bound(self, defense: str) -> Cell:
        """The reference error."""
        return self._cell(bound, defense)

    def smooth(self) -> Cell:
        """Whether reference errors are bounds for this model."""
        return self._cell(smooth, "gradient-noise(scale=1.0)")

    def detail(self, defense: str) -> Cell:
        """The details of a setting that is shown."""
        return self._cell(detail, defense)

    def point(self, defense: str, moment: int = 0) -> list[Cell]:
        """All cells of one point; later moments are attacked only."""
        leaks = [self.identify(defense, moment)]
        if self.attacks:
            leaks = [self.attack(defense, moment), *leaks]
        if moment:
            return leaks
        trained = [self.train(defense)] if self.training_seeds else []
        return [*leaks, *trained, self.bound(defense)]

    def _training(self) -> dict[str, Any]:
        return {"federation": asdict(self.federation)}

    def _moment(self, moment: int) -> dict[str, Any]:
        """A fresh model does not depend on the training."""
        return {"round": moment, **(self._training() if moment else {})}

    def _cell(self, function: Any, defense: str, **settings: Any) -> Cell:
        from gradveil import __version__

        shared = {"gradveil": __version__, "subject": self.subject, "seed": self.seed}
        return Cell(function, {**shared, "defense": defense, **settings})
