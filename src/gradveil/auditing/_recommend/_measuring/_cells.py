"""The cells of an audit over strengths: training, attacks, identification, details.

A cell names its subject by a fingerprint. The subject itself is handed to each process before it
runs cells (`hold`): it is never read from a file.
"""

import math
from dataclasses import asdict, replace
from typing import Any

from gradveil._random import numbered_stream
from gradveil.attacks import Lineups, ThreatModel, Watch
from gradveil.catalog import build_attack, build_defense
from gradveil.defenses import Defense, GradientNoise, Public
from gradveil.mechanisms import Mechanism
from gradveil.sensitivity import Moments, measure
from gradveil.studies.runner import Settings, Value
from gradveil.theory import fisher_trace, trace_error

from ..._amounts import planned, warmed
from ..._attack_runs import AttackRuns, named
from ..._bounds import guarantee_of
from ..._defense_measurement import measure_defense
from ..._meter import Meter
from ..._privacy import Releases
from ..._subject import Batch, Subject
from ..._told_apart import lineups_of, told_apart
from ._training import DivergedError, Training, evaluate_on, make_pool, trained_model

REFRESH = 15
"""Rounds from one public plan to the next."""

_HELD: dict[str, Subject] = {}
_INFORMATION: dict[tuple[str, int], tuple[Moments, str]] = {}
_LINEUPS: dict[tuple[str, int, int], Lineups | None] = {}


def hold(fingerprint: str, subject: Subject) -> None:
    """Keep a subject for the cells that name it."""
    _HELD[fingerprint] = subject


def train(settings: Settings) -> dict[str, Value]:
    """The loss and the accuracy after a defended training, for each seed."""
    subject, defense = _subject(settings), _defense(settings)
    training = Training(**settings["training"])
    found = []
    for seed in range(training.seeds):
        found.append(_after(subject, _in_training(subject, defense, training), training, seed))
    return {
        "losses": [_finite(loss) for loss, _ in found],
        "accuracies": [accuracy for _, accuracy in found],
        "before": evaluate_on(subject, subject.model, _held_out(subject, training))[0],
    }


def _after(
    subject: Subject, defense: Defense, training: Training, seed: int
) -> tuple[float, float | None]:
    """Infinite where training diverged: weights or messages that are not finite."""
    try:
        model = trained_model(subject, defense, training, seed, training.rounds)
    except DivergedError:
        return math.inf, 0.0
    return evaluate_on(subject, model, _held_out(subject, training))


def _held_out(subject: Subject, training: Training) -> Batch:
    return make_pool(subject, training.clients).held_out


def attack(settings: Settings) -> dict[str, Value]:
    """Every attack on the messages of the private batches, at one moment of the training."""
    subject = _moved(settings)
    defense = warmed(subject, planned(subject, _defense(settings)), settings["seed"])
    attackers = named([build_attack(s, allow_imports=True) for s in settings["attacks"]])
    runs = AttackRuns(
        subject,
        {"": defense},
        attackers,
        ThreatModel(**settings["threat"]),
        settings["seeds"],
        settings["seed"],
        Watch(None),
        Meter(1.0, None),
    )
    attacked = runs.run()
    results = attacked.results("", attackers)
    return {"attacks": [asdict(result) for result in results], "notes": list(attacked.notes)}


def identify(settings: Settings) -> dict[str, Value]:
    """What the exact attacker reaches, at one moment of the training."""
    subject = _moved(settings)
    defense = warmed(subject, planned(subject, _defense(settings)), settings["seed"])
    lineups = _lineups(settings, subject)
    found = told_apart(subject, defense, settings["seed"], lineups)
    return {"told_apart": None if found is None else asdict(found)}


def bound(settings: Settings) -> dict[str, Value]:
    """The reference error of one point: `trace_error` of the noise, with public moments.

    Whether it is a bound for this model (`reason` is empty) is found out once, with isotropic
    noise. A defense that clips has none here: ε is what it promises.
    """
    subject, seed = _subject(settings), settings["seed"]
    defense = warmed(subject, planned(subject, _defense(settings)), seed)
    inputs, targets = subject.batch(0)
    mechanism = defense.respond(subject.message(targets), inputs, numbered_stream(seed)).mechanism
    if not isinstance(mechanism, Mechanism) or defense.plan_is_private or mechanism.clip:
        return {"bound": None, "reason": "not stated as noise on the whole message"}
    if defense.formal_privacy is not None:
        return {"bound": None, "reason": "examples are clipped"}
    moments, reason = _information(settings, subject)
    trace = fisher_trace(moments.judged(), mechanism)
    if not math.isfinite(trace):
        return {"bound": None, "reason": "something is sent without noise"}
    error = trace_error(trace, moments.input_size, subject.prior) / moments.input_size
    return {"bound": error, "reason": reason}


def detail(settings: Settings) -> dict[str, Value]:
    """Everything that is measured of one defense without attacks and training."""
    subject = _subject(settings)
    defense = warmed(subject, planned(subject, _defense(settings)), settings["seed"])
    releases = Releases(**settings["releases"])
    return asdict(measure_defense(subject, defense, settings["seed"], releases))


def _information(settings: Settings, subject: Subject) -> tuple[Moments, str]:
    """Moments over public batches, and why they are no guarantee; once in a process."""
    key = (settings["subject"], settings["seed"])
    if key not in _INFORMATION:
        moments = [
            measure(subject.message(targets), inputs, "auto", generator=numbered_stream(key[1], k))
            for k, (inputs, targets) in enumerate(subject.population())
        ]
        reason = guarantee_of(subject, GradientNoise(1.0), key[1], full=False).reason
        _INFORMATION[key] = Moments.average(moments), reason
    return _INFORMATION[key]


def _lineups(settings: Settings, subject: Subject) -> Lineups | None:
    """The candidates; drawn once in a process for the model as given, which all defenses share."""
    seed, trials = settings["seed"], settings["trials"]
    if settings["round"]:
        return lineups_of(subject, seed, trials)
    key = (settings["subject"], seed, trials)
    if key not in _LINEUPS:
        _LINEUPS[key] = lineups_of(subject, seed, trials)
    return _LINEUPS[key]


def _subject(settings: Settings) -> Subject:
    if settings["subject"] not in _HELD:
        raise RuntimeError(
            "The subject of an audit's cells should be held by the process that runs them. Found a"
            " process without it. Run the audit again; it goes on where it stopped."
        )
    return _HELD[settings["subject"]]


def _moved(settings: Settings) -> Subject:
    """The subject with its model as it is after some rounds of training under the defense."""
    subject, rounds = _subject(settings), settings["round"]
    if not rounds:
        return subject
    training = Training(**settings["training"])
    own = _in_training(subject, _defense(settings), training)
    model = trained_model(subject, own, training, 0, rounds)
    return replace(subject, model=model)


def _in_training(subject: Subject, defense: Defense, training: Training) -> Defense:
    """The defense as all clients use it: one public plan for some rounds, as a server sends it."""
    own = planned(subject, defense)
    if not isinstance(own, Public):
        return own
    calls = REFRESH * len(make_pool(subject, training.clients).clients)
    return Public(own.defense, own.examples, calls, own.batch_size)


def _defense(settings: Settings) -> Defense:
    """Import paths in it come from objects that the local user gave."""
    return build_defense(settings["defense"], allow_imports=True)


def _finite(loss: float) -> Any:
    """A loss as JSON has it: `None` where training diverged."""
    return loss if math.isfinite(loss) else None
