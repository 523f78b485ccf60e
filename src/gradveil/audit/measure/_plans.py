"""Where the plans of an audit come from: public examples, unless a defense says otherwise."""

from dataclasses import is_dataclass, replace

from gradveil._random import numbered_stream
from gradveil.defenses import Defense
from gradveil.messages import trainable_parameters
from gradveil.shapes import Public

from .._subject import POPULATION, Audited

STILL = 10**9
"""Calls from one plan to the next while the audited model stays as it is."""


def planned(subject: Audited, defense: Defense, refresh_every: int = STILL) -> Defense:
    """The defense with its plan made from public examples, where there are any.

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


class PublicPlans:
    """Defenses with public plans at the audited model, measured once for all with equal needs.

    Args:
        subject: Model and public examples.
        seed: Of the order of the examples and the probes.
    """

    def __init__(self, subject: Audited, seed: int) -> None:
        self.subject, self.seed = subject, seed
        self._made: dict[str, Public] = {}

    def of(self, defense: Defense, refresh_every: int = STILL) -> Defense:
        """The defense with its plan made, which serves for so many calls."""
        own = planned(self.subject, defense, refresh_every)
        if own is not defense:
            assert isinstance(own.source, Public)
            own.source.follow(self._plan(own))
        return own

    def _plan(self, defense: Defense) -> Public:
        needs = defense.about.needs
        if needs.key not in self._made:
            assert isinstance(defense.source, Public)
            source = Public(defense.source.examples, STILL, batch_size=defense.source.batch_size)
            inputs, targets = self.subject.batch(0)
            like = trainable_parameters(self.subject.model)
            stream = numbered_stream(self.seed)
            source.given(needs, like, self.subject.message(targets), inputs, stream)
            self._made[needs.key] = source
        return self._made[needs.key]
