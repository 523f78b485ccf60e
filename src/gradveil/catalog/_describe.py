"""From an object back to its specification."""

import dataclasses
import inspect
from typing import Any

from gradveil.attacks import Denoised
from gradveil.plans import Shape
from gradveil.theory import Prior

from ._entries import EVERYTHING
from ._parser import Unwritable
from ._spec import Spec


def spec_of(thing: object) -> str:
    """The specification of a defense, an attack or an estimator: what differs from the defaults.

    >>> from gradveil import OptimalNoise
    >>> spec_of(OptimalNoise(0.1, cap=10.0))
    'optimal-noise(scale=0.1, cap=10.0)'
    """
    return str(describe(thing))


def describe(thing: object) -> Spec:
    """The same as a `Spec`."""
    name = name_of(type(thing))
    given: dict[int | str, Any] = {k: _value(v) for k, v in _changed(thing).items()}
    if name in ("cached", "from-server", "released"):  # the first argument is the defense it wraps
        given = {0: given.pop("defense"), **given}
    return Spec(name, given)


def name_of(kind: type) -> str:
    """The name of a class in specifications: as registered, or its import path.

    >>> from gradveil import OptimalNoise
    >>> name_of(OptimalNoise)
    'optimal-noise'
    """
    for entry in EVERYTHING.values():
        if entry.build is kind:
            return entry.name
    return f"{kind.__module__}:{kind.__qualname__}"


def _changed(thing: object) -> dict[str, Any]:
    """The options that are not at their defaults."""
    if dataclasses.is_dataclass(thing):
        pairs = [(f.name, _default(f)) for f in dataclasses.fields(thing) if f.init]
    else:
        parameters = inspect.signature(type(thing)).parameters.values()
        pairs = [(p.name, p.default) for p in parameters if hasattr(thing, p.name)]
    now = {name: getattr(thing, name) for name, _ in pairs}
    changed = [name for name, default in pairs if not _same(now[name], default)]
    return {"plan" if name == "plan_from" else name: now[name] for name in changed}


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _value(value: object) -> Any:
    if isinstance(value, Prior):  # samples have no specification
        return Unwritable(value.name)
    if isinstance(value, Denoised):  # nor have networks
        return Unwritable("learned")
    if isinstance(value, Shape):
        return Unwritable(f"shape of {value.numbers} numbers")
    if isinstance(value, (list, tuple)):
        return type(value)(_value(part) for part in value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else describe(value)
