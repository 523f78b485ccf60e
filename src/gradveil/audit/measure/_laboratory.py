"""What all measurements of an audit share, whatever the defense: the `Laboratory`."""

import functools
import hashlib
import json
from copy import deepcopy
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradveil._fingerprint import state_of
from gradveil._random import numbered_stream
from gradveil.attacks import Attack
from gradveil.catalog import build_defense, spec_of
from gradveil.defenses import Defended, Defense
from gradveil.federated import Federation
from gradveil.messages import trainable_parameters
from gradveil.shapes import Public, Request
from gradveil.theory import Evaluations

from .._result import fields_of_results
from .._settings import Settings
from .._subject import POPULATION, Audited
from ._training import trained_model

STILL = 10**9
"""Calls from one plan to the next while the audited model stays as it is."""


@dataclass(frozen=True)
class BlindGuess:
    """A guess of every private example."""

    name: str
    errors: Tensor
    """Squared, of each private example, in [0, 1] units."""
    pixels: Tensor | None = None
    """What is guessed, in [0, 1] units; `None` for tokens."""


def blind_guess(subject: Audited, labels_known: bool) -> BlindGuess:
    """The mean of the public examples, or of those of the same class where that is nearer.

    Without public examples the mean of the other private ones; of a single one, mid-grey. Of tokens
    the most frequent one of each place, and the errors are the shares of wrong ones.
    """
    data, public = subject.data, subject.public
    if subject.data.tokens:
        kind = "private" if public is None else "public"
        usual = subject.known[0].mode(0).values
        wrong = (data.inputs != usual).double().mean(1)
        return BlindGuess(f"the most frequent {kind} token of each place", wrong)
    guesses = {"mid-grey": torch.full_like(data.inputs, 0.5)}
    if public is not None:
        of = f"{len(public[0])} public examples"
        guesses = {f"the mean of {of}": data.to_pixels(public[0].mean(0).expand_as(data.inputs))}
        if labels_known and data.task == "classification":
            members = [public[0][public[1] == label] for label in data.targets]
            if all(len(group) > 1 for group in members):
                means = torch.stack([group.mean(0) for group in members])
                guesses[f"the mean of its class among {of}"] = data.to_pixels(means)
    elif len(data) > 1:
        others = (data.inputs.sum(0) - data.inputs) / (len(data) - 1)
        guesses = {"the mean of the other private examples": data.to_pixels(others)}
    truth, rated = data.to_pixels(data.inputs), []
    for name, made in guesses.items():
        made = made.clamp(0, 1)
        rated.append(BlindGuess(name, (made - truth).square().flatten(1).mean(1), made))
    return min(rated, key=lambda guess: float(guess.errors.mean()))


@dataclass(frozen=True)
class Laboratory:
    """A subject in a federation, how it is measured, and what is known of it; in each process."""

    subject: Audited
    federation: Federation = field(default_factory=Federation)
    settings: Settings = field(default_factory=Settings)
    _plans: dict[str, Public] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def moments(self) -> tuple[int, ...]:
        """The rounds at which models are attacked: the first, the middle and the last."""
        rounds = self.federation.rounds
        return tuple(dict.fromkeys((0, rounds // 2, rounds)))

    @functools.cached_property
    def attacks(self) -> dict[str, Attack]:
        """Those that are run, by their specifications."""
        return {spec_of(one): one for one in self.settings.chosen_attacks(self.subject.data)}

    @functools.cached_property
    def named(self) -> dict[str, Any]:
        """What cells may depend on, as JSON; the subject by a fingerprint.

        The fields of results count, too: what was kept with others cannot be read any more.
        """
        from gradveil import __version__

        return {
            "gradveil": f"{__version__}, results {hash_of(fields_of_results())[:16]}",
            "subject": fingerprint(self.subject),
            "federation": asdict(self.federation),
            "attacks": list(self.attacks),
            "threat": asdict(self.settings.threat),
            "seeds": self.settings.seeds,
            "training_seeds": self.settings.training_seeds,
            "seed": self.settings.seed,
        }

    def after(self, defense: str, rounds: int) -> "Laboratory":
        """The same for the model after some rounds of training under a defense."""
        if not rounds:
            return self
        own = self.defense(defense, training=True)
        model = trained_model(self.subject, own, self.federation, 0, rounds)
        return replace(self, subject=replace(self.subject, model=model))

    @functools.cached_property
    def population(self) -> list[tuple[Tensor, Evaluations]]:
        """The batches over which bounds are averaged, each with what is known of its message."""
        batches = self.subject.population()
        return [(x, Evaluations(self.subject.message(y))) for x, y in batches]

    @functools.cached_property
    def guess(self) -> BlindGuess:
        """What an attacker has who sees no message."""
        return blind_guess(self.subject, self.settings.threat.labels == "known")

    def defense(self, text: str, training: bool = False) -> Defense:
        """A defense with its public plan made; in a training it serves for 20 rounds.

        Import paths are those of the user's own objects.
        """
        return self.planned(build_defense(text, allow_imports=True), 20 if training else STILL)

    def planned(self, defense: Defense, refresh_every: int = STILL) -> Defense:
        """The defense with its public plan made: measured once for all with equal needs."""
        own = with_public_plan(self.subject, defense, refresh_every)
        if own is defense:
            return own
        needs, source = own.about.needs, own.source
        assert isinstance(source, Public)
        if needs.key not in self._plans:
            plan = Public(source.examples, STILL, batch_size=source.batch_size)
            inputs, targets = self.subject.batch(0)
            message, stream = self.subject.message(targets), numbered_stream(self.settings.seed)
            like = trainable_parameters(self.subject.model)
            plan.given(Request(needs, like, message, inputs, stream))
            self._plans[needs.key] = plan
        source.follow(self._plans[needs.key])
        return own

    def plan_of(self, text: str) -> str:
        """What the levels of a defense are made from: "public", "model" ...; "" for none."""
        built = build_defense(text, allow_imports=True)
        return with_public_plan(self.subject, built).about.source

    def respond(self, defense: Defense) -> Defended:
        """What the defense does to the message of the first batch."""
        inputs, targets = self.subject.batch(0)
        stream = numbered_stream(self.settings.seed)
        return deepcopy(defense).respond(self.subject.message(targets), inputs, stream)


def with_public_plan(subject: Audited, defense: Defense, refresh_every: int = STILL) -> Defense:
    """The defense, to plan from public examples where there are any.

    They are the last: the clients of the defended training have the first. A defense that asks for
    a private plan gets it, and one that plans from somewhere else keeps that. Without public
    examples the plan is made from the model alone.
    """
    size, public = subject.batch_size, subject.public
    if public is None or len(public[0]) < 2 * size:
        return defense
    if defense.about.source != "model" or not is_dataclass(defense):
        return defense
    inputs, targets = (part[-POPULATION * size :] for part in public)
    return replace(defense, source=Public((inputs, targets), refresh_every, batch_size=size))


def fingerprint(subject: Audited) -> str:
    """SHA-256 of model, loss, data and public examples, and of the user's own code in them."""
    content = {
        "model": subject.model,
        "loss": subject.loss_fn,
        "data": [subject.data.inputs, subject.data.targets, subject.data.mean, subject.data.std],
        "public": subject.public,
        "batch_size": subject.batch_size,
        "local": subject.local,
        "layout": subject.data.layout,
        "others": [subject.range_is_public, subject.prior],
    }
    return hash_of(state_of(content))


def hash_of(content: Any) -> str:
    """SHA-256 of JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
