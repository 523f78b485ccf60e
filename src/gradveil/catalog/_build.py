"""Builders of defenses, attacks and estimators from specifications."""

from gradveil._imports import AllowImports
from gradveil.attacks import Attack
from gradveil.defenses import Defense
from gradveil.sensitivity import Estimator

from ._spec import Spec


def build_defense(spec: str | Spec, *, allow_imports: AllowImports = False) -> Defense:
    """A defense from its specification.

    Args:
        spec: As text or as a `Spec`; only registered names, unless imports are allowed.
        allow_imports: For ``package.module:Class(...)``, whose code is then run: True for text of
            the local user's, or the import paths that are allowed.

    >>> build_defense("optimal-pruning(ratio=0.9, noise=gradient-noise(0.01))").ratio
    0.9
    """
    made: Defense = _spec(spec, "defense").build("defense", allow_imports=allow_imports)
    return made


def build_attack(spec: str | Spec, *, allow_imports: AllowImports = False) -> Attack:
    """An attack from its specification; arguments as for `build_defense`.

    >>> build_attack("inverting-gradients(steps=100, total_variation=1e-2)").steps
    100
    """
    made: Attack = _spec(spec, "attack").build("attack", allow_imports=allow_imports)
    return made


def build_estimator(spec: str | Spec, *, allow_imports: AllowImports = False) -> Estimator | str:
    """An estimator from its specification, or "auto"; arguments as for `build_defense`.

    >>> build_estimator("sketch(probes=3)")
    Sketch(probes=3, kind='gaussian')
    """
    if spec == "auto":
        return "auto"
    made: Estimator = _spec(spec, "estimator").build("estimator", allow_imports=allow_imports)
    return made


def _spec(spec: str | Spec, what: str) -> Spec:
    return spec if isinstance(spec, Spec) else Spec.parse(spec, what)
