"""What an audit measures, as cells: training, attacks, identification, bound, details.

A cell names its subject by a fingerprint. The subject itself, and what is known of it whatever the
defense, is in the `Laboratory` that the runner hands to each process.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from gradveil._runner import Cell, CellFunction, Settings
from gradveil.attacks import Attack, ThreatModel
from gradveil.catalog import build_defense
from gradveil.defenses import Defense
from gradveil.federated import Federation

from .._result import Releases
from .._subject import Audited
from ._attacks import run_attacks
from ._bounds import Population, guarantee_of, population_of
from ._details import measure_defense, told_apart
from ._fingerprint import fingerprint
from ._guess import BlindGuess, blind_guess
from ._plans import STILL, PublicPlans
from ._training import DivergedError, evaluate_on, make_pool, trained_model

PLAIN = "no-defense"
TRIALS = 128
"""Messages by which the exact attacker is measured. A plan that depends on the batch is made for
each message and candidate: then eight times fewer."""


@dataclass(frozen=True)
class Laboratory:
    """A subject, how it is measured, and what is known of it whatever the defense."""

    subject: Audited
    federation: Federation
    attacks: Mapping[str, Attack]
    """By their specifications."""
    threat: ThreatModel
    releases: Releases
    seeds: int
    training_seeds: int
    seed: int

    @property
    def moments(self) -> tuple[int, ...]:
        """The rounds at which models are attacked: the first, the middle and the last."""
        rounds = self.federation.rounds
        return tuple(dict.fromkeys((0, rounds // 2, rounds)))

    def cell(self, kind: str, defense: str, moment: int = 0) -> Cell:
        """One measurement of a defense, named by what it depends on; see `KINDS`."""
        function, _, uses = KINDS[kind]
        uses = ("gradveil", "subject", "seed", *uses, *(("federation",) if moment else ()))
        shared = {name: self._named[name] for name in uses}
        return Cell(function, {"defense": defense, "round": moment, **shared})

    @cached_property
    def _named(self) -> dict[str, Any]:
        """What cells may depend on, as JSON."""
        from gradveil import __version__

        return {
            "gradveil": __version__,
            "subject": fingerprint(self.subject),
            "federation": asdict(self.federation),
            "attacks": list(self.attacks),
            "threat": asdict(self.threat),
            "seeds": self.seeds,
            "training_seeds": self.training_seeds,
            "seed": self.seed,
        }

    def cells(self, defense: str, moment: int = 0) -> list[Cell]:
        """All cells of one point; later moments are attacked only."""
        kinds = {
            "attack": bool(self.attacks),
            "identify": True,
            "train": self.training_seeds and not moment,
            "bound": not moment,
        }
        return [self.cell(kind, defense, moment) for kind, wanted in kinds.items() if wanted]

    def after(self, defense: str, rounds: int) -> "Laboratory":
        """The same for the model after some rounds of training under a defense."""
        if not rounds:
            return self
        own = self.defense(defense, training=True)
        model = trained_model(self.subject, own, self.federation, 0, rounds)
        return replace(self, subject=replace(self.subject, model=model))

    @cached_property
    def population(self) -> Population:
        """Over which bounds are averaged."""
        return population_of(self.subject)

    @cached_property
    def guess(self) -> BlindGuess:
        """What an attacker has who sees no message."""
        return blind_guess(self.subject, self.threat.labels == "known")

    @cached_property
    def _plans(self) -> PublicPlans:
        return PublicPlans(self.subject, self.seed)

    def defense(self, text: str, training: bool = False) -> Defense:
        """A defense with its public plan made; in a training it serves for 20 rounds.

        Import paths are those of the user's own objects.
        """
        calls = 20 * self.federation.clients if training else STILL
        return self._plans.of(build_defense(text, allow_imports=True), calls)


def train(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """The loss and the accuracy after a defended training, for each seed.

    The loss is infinite where training diverged: weights or messages that are not finite.
    """
    subject, federation = laboratory.subject, laboratory.federation
    held_out = make_pool(subject, federation.clients).held_out
    found: list[tuple[float, float | None]] = []
    for seed in range(laboratory.training_seeds):
        own = laboratory.defense(settings["defense"], training=True)
        try:
            model = trained_model(subject, own, federation, seed, federation.rounds)
            found.append(evaluate_on(subject, model, held_out))
        except DivergedError:
            found.append((math.inf, 0.0))
        if own.about.undefended:
            break
    return {
        "losses": [loss if math.isfinite(loss) else math.inf for loss, _ in found],
        "accuracies": [accuracy for _, accuracy in found],
        "before": evaluate_on(subject, subject.model, held_out)[0],
    }


def attack(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """Every attack on the messages of the private batches, at one moment of the training."""
    now = laboratory.after(settings["defense"], settings["round"])
    defense = now.defense(settings["defense"])
    results, notes = run_attacks(
        now.subject, defense, now.attacks, now.threat, now.seeds, now.seed, now.guess
    )
    return {"attacks": [asdict(result) for result in results], "notes": notes}


def identify(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """What the exact attacker reaches, at one moment of the training."""
    now = laboratory.after(settings["defense"], settings["round"])
    defense = now.defense(settings["defense"])
    trials = TRIALS // 8 if defense.about.private else TRIALS
    found = told_apart(now.subject, defense, now.seed, trials)
    return {"told_apart": None if found is None else asdict(found)}


def bound(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """The reference error of one point, in its trace form, and why it is no bound.

    A defense with an (ε, δ), or that plans from the batch, has none here: it takes long.
    """
    defense = laboratory.defense(settings["defense"])
    if defense.about.private or defense.about.formal_privacy is not None:
        return {"bound": None, "reason": "not computed"}
    population, seed = laboratory.population, laboratory.seed
    found = guarantee_of(laboratory.subject, defense, seed, population, full=False)
    return {"bound": found.bound and found.bound.trace_mse, "reason": found.reason}


def detail(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """Everything that is measured of one defense without attacks and training."""
    defense = laboratory.defense(settings["defense"])
    population = laboratory.population
    return asdict(measure_defense(laboratory.subject, defense, laboratory.seed, population))


class Kind(NamedTuple):
    """A kind of cells."""

    function: CellFunction
    work: float
    """About how long it takes, over the others."""
    uses: tuple[str, ...] = ()
    """What it depends on in the laboratory, beside the subject and the seed."""


KINDS = {
    "train": Kind(train, 3.0, ("federation", "training_seeds")),
    "attack": Kind(attack, 6.0, ("attacks", "threat", "seeds")),
    "identify": Kind(identify, 1.0),
    "bound": Kind(bound, 1.0),
    "detail": Kind(detail, 5.0),
}
