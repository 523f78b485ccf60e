"""Where the plans of an audit come from: public examples, unless a defense says otherwise."""

from copy import deepcopy
from dataclasses import is_dataclass, replace

import torch

from gradveil._random import numbered_stream
from gradveil.defenses import Defense
from gradveil.messages import trainable_parameters
from gradveil.sensitivity import Moments
from gradveil.shapes import Given, Public

from .._subject import POPULATION, Audited, Batch

STILL = 10**9
"""Calls from one plan to the next while the audited model stays as it is."""

ROUNDS = 10
"""Rounds of a training from one public plan to the next."""


class PublicPlans:
    """Shapes of public examples at the audited model, made once for all defenses.

    Args:
        subject: Model and public examples.
        seed: Of the order of the examples and the probes.
    """

    def __init__(self, subject: Audited, seed: int) -> None:
        self.subject, self.seed = subject, seed
        self._made: list[tuple[tuple[object, ...], Public]] = []

    def warm(self, defense: Defense) -> None:
        """Let it take a shape that a defense with the same needs has made, or make one."""
        source = defense.source
        assert isinstance(source, Public)
        needs = (defense.about.needs.key, source.batch_size)
        for known, other in self._made:
            if known == needs and _same_examples(other, source):
                source.follow(other)
                return
        inputs, targets = self.subject.batch(0)
        message = self.subject.message(targets)
        like = trainable_parameters(self.subject.model)
        source.given(defense.about.needs, like, message, inputs, numbered_stream(self.seed))
        self._made.append((needs, source))


def planned(subject: Audited, defense: Defense) -> Defense:
    """The defense with its plan made from public examples, where there are any.

    A defense that asks for a private plan gets it, and one that plans from somewhere else keeps
    that. Without public examples the plan is made from the model alone.
    """
    examples = _examples(subject)
    if examples is None or defense.about.source != "model" or not is_dataclass(defense):
        return defense
    return replace(defense, source=Public(examples, STILL, batch_size=subject.batch_size))


def moving(defense: Defense, clients: int) -> Defense:
    """The same for a model that is trained: a public plan is made again every few rounds.

    The clients of a round have the same model, and so the same plan. The first one is that of the
    given defense, if it has been made.
    """
    source = defense.source
    if not isinstance(source, Public) or not is_dataclass(defense):
        return defense
    moved = Public(source.examples, ROUNDS * clients, batch_size=source.batch_size)
    moved.follow(source)
    return replace(defense, source=moved)


def warmed(
    subject: Audited, defense: Defense, seed: int, plans: PublicPlans | None = None
) -> Defense:
    """The same with its public plan made, once for all that is measured of it.

    With `plans` of this subject and seed, moments that another defense has measured are taken.
    """
    if isinstance(defense.source, Public):
        (PublicPlans(subject, seed) if plans is None else plans).warm(defense)
    return defense


def source_of(
    subject: Audited,
    defense: Defense,
    moments: Moments,
    seed: int,
    plans: PublicPlans | None = None,
) -> Given | None:
    """What a defense is shaped by; `None` for the audited batch itself, or for nothing."""
    if defense.about.private or not defense.about.needs.moments:
        return None
    inputs, targets = subject.batch(0)
    own = deepcopy(warmed(subject, planned(subject, defense), seed, plans))
    return own.given(moments, subject.message(targets), inputs, numbered_stream(seed))


def plan_of(defense: Defense) -> str:
    """What a plan was made from, in a word; "" for a defense that plans nothing."""
    return defense.about.source


def unwrapped(defense: Defense) -> Defense:
    """The defense without public examples, which has a specification."""
    if isinstance(defense.source, Public) and is_dataclass(defense):
        return replace(defense, source="model")
    return defense


def _examples(subject: Audited) -> Batch | None:
    """The last public examples: the clients of the defended training have the first."""
    if subject.public is None or len(subject.public[0]) < 2 * subject.batch_size:
        return None
    inputs, targets = subject.public
    count = POPULATION * subject.batch_size
    return inputs[-count:], targets[-count:]


def _same_examples(one: Public, other: Public) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
