"""Where the plans of an audit come from: public examples, unless a defense says otherwise."""

from copy import deepcopy

import torch

from gradveil._random import numbered_stream
from gradveil.defenses import Defense, Public
from gradveil.sensitivity import Moments

from .._defaults import CLIENTS, POPULATION
from .._subject import Batch, Subject

STILL = 10**9
"""Calls from one plan to the next while the audited model stays as it is."""

ROUNDS = 10
"""Rounds of a training from one public plan to the next."""


class PublicPlans:
    """Moments of public examples at the audited model, measured once for all defenses.

    Args:
        subject: Model and public examples.
        seed: Of the order of the examples and the probes.
    """

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject, self.seed = subject, seed
        self._made: list[tuple[tuple[object, ...], Public]] = []

    def warm(self, defense: Public) -> None:
        """Let it plan from moments that a defense with the same needs has measured, or measure."""
        inner = defense.defense
        needs = (inner.has_target_error, inner.needs_curvature, inner.estimator, defense.batch_size)
        for known, other in self._made:
            if known == needs and _same_examples(other, defense):
                defense.follow(other)
                return
        inputs, targets = self.subject.batch(0)
        message = self.subject.message(targets)
        defense.public_moments(message, inputs, numbered_stream(self.seed))
        self._made.append((needs, defense))


def planned(subject: Subject, defense: Defense) -> Defense:
    """The defense with its plan made from public examples, where there are any.

    A defense that asks for a private plan gets it, and one that plans from somewhere else keeps
    that. Without public examples the plan is made from the model alone.
    """
    examples = _examples(subject)
    if examples is None or defense.plan_from != "model" or not defense.reads_moments:
        return defense
    if defense.plan_is_private:
        return defense
    return Public(defense, examples, STILL, batch_size=subject.batch_size)


def moving(defense: Defense, clients: int = CLIENTS) -> Defense:
    """The same for a model that is trained: a public plan is made again every few rounds.

    The clients of a round have the same model, and so the same plan. The first one is that of the
    given defense, if it has been made.
    """
    if not isinstance(defense, Public):
        return defense
    examples, size = defense.examples, defense.batch_size
    moved = Public(defense.defense, examples, ROUNDS * clients, batch_size=size)
    moved.follow(defense)
    return moved


def warmed(
    subject: Subject, defense: Defense, seed: int, plans: PublicPlans | None = None
) -> Defense:
    """The same with its public plan made, once for all that is measured of it.

    With `plans` of this subject and seed, moments that another defense has measured are taken.
    """
    if isinstance(defense, Public):
        (PublicPlans(subject, seed) if plans is None else plans).warm(defense)
    return defense


def source_of(
    subject: Subject,
    defense: Defense,
    moments: Moments,
    seed: int,
    plans: PublicPlans | None = None,
) -> Moments:
    """The moments that a defense plans from: those of the audited batch only for a private plan."""
    if defense.plan_is_private or not defense.reads_moments:
        return moments
    inputs, targets = subject.batch(0)
    own = deepcopy(warmed(subject, planned(subject, defense), seed, plans))
    return own.public_moments(subject.message(targets), inputs, numbered_stream(seed))


def plan_of(defense: Defense) -> str:
    """What a plan was made from, in a word; "" for a defense that plans nothing."""
    if defense.plan_is_private:
        return "private"
    return defense.plan_from if defense.reads_moments else ""


def unwrapped(defense: Defense) -> Defense:
    """The defense inside of `Public`, which has a specification."""
    return defense.defense if isinstance(defense, Public) else defense


def _examples(subject: Subject) -> Batch | None:
    """The last public examples: the clients of the defended training have the first."""
    if subject.public is None or len(subject.public[0]) < 2 * subject.batch_size:
        return None
    inputs, targets = subject.public
    count = POPULATION * subject.batch_size
    return inputs[-count:], targets[-count:]


def _same_examples(one: Public, other: Public) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.examples, other.examples, strict=True))
