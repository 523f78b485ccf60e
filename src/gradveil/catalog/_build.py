"""Things from their specifications, and specifications from things."""

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from gradveil._imports import AllowImports
from gradveil.defenses import Defense
from gradveil.sensitivity import Estimator

from ._entries import EVERYTHING
from ._spec import Spec, Unwritable, each

if TYPE_CHECKING:  # who builds defenses imports no attack
    from gradveil.attacks import Attack


def spec_of(thing: object) -> str:
    """The specification of a defense, an attack or an estimator: what differs from the defaults.

    >>> from gradveil import OptimalNoise
    >>> spec_of(OptimalNoise(0.1, cap=10.0))
    'optimal-noise(scale=0.1, cap=10.0)'
    """
    return str(_described(thing))


def _described(thing: object) -> Spec:
    return Spec(name_of(type(thing)), {k: each(_value, v) for k, v in _changed(thing).items()})


def name_of(kind: type) -> str:
    """The name of a class in specifications: as registered, or its import path.

    >>> from gradveil import OptimalNoise
    >>> name_of(OptimalNoise)
    'optimal-noise'
    """
    package = kind.__module__.removeprefix("gradveil.").partition(".")[0]
    for entry in EVERYTHING.values():
        if entry.place == f"{package}:{kind.__qualname__}" and entry.build is kind:
            return entry.name
    return f"{kind.__module__}:{kind.__qualname__}"


def _changed(thing: object) -> dict[str, Any]:
    """The options that are not at their defaults."""
    usual = {n: p.default for n, p in inspect.signature(type(thing)).parameters.items()}
    for option in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        if option.default_factory is not dataclasses.MISSING:
            usual[option.name] = option.default_factory()
    now = {name: getattr(thing, name) for name in usual if hasattr(thing, name)}
    return {name: value for name, value in now.items() if not _same(value, usual[name])}


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _value(value: object) -> Any:
    words = getattr(value, "spec_words", None)
    if words is not None:  # samples, networks and shapes have no specification
        return Unwritable(words)
    return value if isinstance(value, (bool, int, float, str, type(None))) else _described(value)


def shown_name(text: str) -> str:
    """The name without its arguments; a text that is no specification as it is.

    >>> shown_name("adaptive(prior=None)"), shown_name("<b>no specification</b>")
    ('adaptive', '<b>no specification</b>')
    """
    try:
        return Spec.parse(text).name
    except ValueError:
        return text


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


def build_attack(spec: str | Spec, *, allow_imports: AllowImports = False) -> "Attack":
    """An attack from its specification; arguments as for `build_defense`.

    >>> build_attack("inverting-gradients(steps=100, total_variation=1e-2)").steps
    100
    """
    made: Attack = _spec(spec, "attack").build("attack", allow_imports=allow_imports)
    return made


def build_estimator(spec: str | Spec, *, allow_imports: AllowImports = False) -> Estimator | str:
    """An estimator from its specification, or "auto"; arguments as for `build_defense`.

    >>> build_estimator("sketch(probes=3)")
    Sketch(probes=3)
    """
    if spec == "auto":
        return "auto"
    made: Estimator = _spec(spec, "estimator").build("estimator", allow_imports=allow_imports)
    return made


def _spec(spec: str | Spec, what: str) -> Spec:
    return spec if isinstance(spec, Spec) else Spec.parse(spec, what)
