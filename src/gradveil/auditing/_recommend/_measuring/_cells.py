"""The cells of an audit over strengths: training, attacks, identification, bound, details.

A cell names its subject by a fingerprint. The subject itself is handed to each process before it
runs cells (`hold`): it is never read from a file.
"""

import math
from copy import deepcopy
from dataclasses import asdict, replace
from typing import Any

from gradveil._random import numbered_stream
from gradveil.attacks import ThreatModel, Watch
from gradveil.catalog import build_attack
from gradveil.mechanisms import Mechanism
from gradveil.studies.runner import Settings, Value
from gradveil.theory import fisher_trace, trace_error

from ..._attack_runs import AttackRuns, named
from ..._defense_measurement import measure_defense
from ..._meter import Meter
from ..._privacy import Releases
from ..._subject import Subject
from ..._told_apart import told_apart
from ._known import Known
from ._training import DivergedError, Training, evaluate_on, make_pool, trained_model

PRIVATE_SHARE = 8
"""A plan that depends on the batch is made for each message and candidate: so many times fewer."""

_HELD: dict[str, Subject] = {}
_KNOWN: dict[tuple[str, int], Known] = {}


def hold(fingerprint: str, subject: Subject) -> None:
    """Keep a subject for the cells that name it, with a model that nobody else changes.

    One subject is held at a time: what was known of another is forgotten.
    """
    if fingerprint not in _HELD:
        _KNOWN.clear()
        _HELD.clear()
        _HELD[fingerprint] = replace(subject, model=deepcopy(subject.model))


def train(settings: Settings) -> dict[str, Value]:
    """The loss and the accuracy after a defended training, for each seed."""
    known, training = _known(settings), Training(**settings["training"])
    draws = 1 if known.defense(settings["defense"]).is_undefended else training.seeds
    found = [_after(known, settings["defense"], training, seed) for seed in range(draws)]
    held_out = make_pool(known.subject, training.clients).held_out
    return {
        "losses": [_finite(loss) for loss, _ in found],
        "accuracies": [accuracy for _, accuracy in found],
        "before": evaluate_on(known.subject, known.subject.model, held_out)[0],
    }


def attack(settings: Settings) -> dict[str, Value]:
    """Every attack on the messages of the private batches, at one moment of the training."""
    known = _at_moment(settings)
    attackers = named([build_attack(s, allow_imports=True) for s in settings["attacks"]])
    runs = AttackRuns(
        known.subject,
        {"": known.defense(settings["defense"])},
        attackers,
        ThreatModel(**settings["threat"]),
        settings["seeds"],
        settings["seed"],
        Watch(None),
        Meter(1.0, None),
    )
    attacked = runs.run()
    if attacked.stopped == "interrupted":
        raise KeyboardInterrupt  # what is not whole is not kept
    results = attacked.results("", attackers)
    return {"attacks": [asdict(result) for result in results], "notes": list(attacked.notes)}


def identify(settings: Settings) -> dict[str, Value]:
    """What the exact attacker reaches, at one moment of the training."""
    known = _at_moment(settings)
    defense = known.defense(settings["defense"])
    fewer = PRIVATE_SHARE if defense.plan_is_private else 1
    lineups = known.lineups(-(-settings["trials"] // fewer))
    found = told_apart(known.subject, defense, settings["seed"], lineups)
    return {"told_apart": None if found is None else asdict(found)}


def bound(settings: Settings) -> dict[str, Value]:
    """The reference error of one point: `trace_error` of the noise, with public moments.

    Whether it is a bound for this model says `smooth`. A defense that clips or clamps, or that
    plans from the batch, has none here.
    """
    known = _known(settings)
    defense = known.defense(settings["defense"])
    if known.subject.tokens or defense.plan_is_private or defense.formal_privacy is not None:
        return {"bound": None}
    inputs, targets = known.subject.batch(0)
    message = known.subject.message(targets)
    mechanism = defense.respond(message, inputs, numbered_stream(known.seed)).mechanism
    if not isinstance(mechanism, Mechanism) or mechanism.clip:
        return {"bound": None}
    moments = known.moments.judged()
    trace = fisher_trace(moments, mechanism)
    if not math.isfinite(trace):
        return {"bound": None}
    error = trace_error(trace, moments.input_size, known.subject.prior) / moments.input_size
    return {"bound": error}


def smooth(settings: Settings) -> dict[str, Value]:
    """Why reference errors are no bounds for this model, found with isotropic noise; or nothing."""
    return {"reason": _known(settings).no_guarantee}


def detail(settings: Settings) -> dict[str, Value]:
    """Everything that is measured of one defense without attacks and training."""
    known = _known(settings)
    releases = Releases(**settings["releases"])
    defense = known.defense(settings["defense"])
    return asdict(measure_defense(known.subject, defense, settings["seed"], releases))


def _after(known: Known, defense: str, training: Training, seed: int) -> tuple[float, float | None]:
    """Infinite where training diverged: weights or messages that are not finite."""
    subject, own = known.subject, known.in_training(defense, training.clients)
    try:
        model = trained_model(subject, own, training, seed, training.rounds)
    except DivergedError:
        return math.inf, 0.0
    return evaluate_on(subject, model, make_pool(subject, training.clients).held_out)


def _known(settings: Settings) -> Known:
    """What is known of the model as given; kept for all cells of this process."""
    key = (settings["subject"], settings["seed"])
    if key[0] not in _HELD:
        raise RuntimeError(
            "The subject of an audit's cells should be held by the process that runs them. Found a"
            " process without it. Run the audit again; it goes on where it stopped."
        )
    if key not in _KNOWN:
        _KNOWN[key] = Known(_HELD[key[0]], key[1])
    return _KNOWN[key]


def _at_moment(settings: Settings) -> Known:
    """The same for the model after some rounds of training under the defense."""
    known, rounds = _known(settings), settings["round"]
    if not rounds:
        return known
    training = Training(**settings["training"])
    own = known.in_training(settings["defense"], training.clients)
    model = trained_model(known.subject, own, training, 0, rounds)
    return Known(replace(known.subject, model=model), known.seed)


def _finite(loss: float) -> Any:
    """A loss as JSON has it: `None` where training diverged."""
    return loss if math.isfinite(loss) else None
