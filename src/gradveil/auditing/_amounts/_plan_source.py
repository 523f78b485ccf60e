"""Where the plans of an audit come from: public examples, unless a defense says otherwise."""

from gradveil._random import numbered_stream
from gradveil.defenses import Defense, Public
from gradveil.sensitivity import Moments

from .._defaults import POPULATION
from .._subject import Batch, Subject

STILL = 10**9
"""Calls from one plan to the next while the audited model stays as it is."""


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


def moving(defense: Defense) -> Defense:
    """The same for a model that is trained: a public plan is made again every few steps."""
    if not isinstance(defense, Public):
        return defense
    return Public(defense.defense, defense.examples, batch_size=defense.batch_size)


def warmed(subject: Subject, defense: Defense, seed: int) -> Defense:
    """The same with its public plan made, once for all that is measured of it."""
    if isinstance(defense, Public):
        inputs, targets = subject.batch(0)
        defense.public_moments(subject.message(targets), inputs, numbered_stream(seed))
    return defense


def source_of(subject: Subject, defense: Defense, moments: Moments, seed: int) -> Moments:
    """The moments that a defense plans from: those of the audited batch only for a private plan."""
    if defense.plan_is_private or not defense.reads_moments:
        return moments
    inputs, targets = subject.batch(0)
    message = subject.message(targets)
    return planned(subject, defense).public_moments(message, inputs, numbered_stream(seed))


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
