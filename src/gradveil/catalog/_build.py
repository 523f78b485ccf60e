"""One builder for each kind of thing."""

from gradveil.attacks import Attack
from gradveil.defenses import Defense
from gradveil.sensitivity import Estimator

from ._entries import ATTACKS, DEFENSES, ESTIMATORS
from ._spec import build


def build_defense(spec: str) -> Defense:
    """A defense from its specification, or ``package.module:Class(...)`` for one of the user's.

    >>> build_defense("optimal-pruning(ratio=0.9, noise=gradient-noise(0.01))").ratio
    0.9
    """
    made = build(spec, DEFENSES, "defense")
    if not isinstance(made, Defense):
        raise ValueError(
            f"A defense should be a subclass of `gradveil.Defense`. Found that {spec!r} gives a"
            f" {type(made).__name__}."
        )
    return made


def build_attack(spec: str) -> Attack:
    """An attack from its specification, or ``package.module:Class(...)`` for one of the user's.

    >>> build_attack("inverting-gradients(steps=100, total_variation=1e-2)").steps
    100
    """
    made = build(spec, ATTACKS, "attack")
    if not callable(made):
        raise ValueError(
            "An attack should be callable as attack(observation, generator). Found that"
            f" {spec!r} gives a {type(made).__name__}."
        )
    return made  # type: ignore[no-any-return]


def build_estimator(spec: str) -> Estimator | str:
    """An estimator from its specification, or "auto"."""
    if isinstance(spec, str) and spec == "auto":
        return spec
    made: Estimator = build(spec, ESTIMATORS, "estimator")
    return made
