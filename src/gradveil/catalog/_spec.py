"""Specifications as text: `name(argument, option=value)`, to an object and back."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from typing import Any

from gradveil._checks import check_kind
from gradveil._suggest import suggestion
from gradveil.theory import GaussianPrior

from ._entries import EVERYTHING, Entry

_SHAPE = re.compile(r"\s*([\w.:\-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_HYPHEN = re.compile(r"(?<=[A-Za-z])-(?=[A-Za-z])")


def build(spec: str, known: Mapping[str, Entry], kind: str) -> Any:
    """The object that a specification describes; `known` are the names allowed at the top."""
    check_kind(spec, "spec", str, f"A {kind} reads as `name(option=value)`.")
    found = _SHAPE.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"A {kind} should read `name` or `name(option=value, ...)`. Found {spec!r}."
            f" Known names: {', '.join(known)}."
        )
    name, arguments = found.group(1), found.group(2) or ""
    make = _imported(name, kind) if ":" in name else _entry(name, known, kind).build
    positional, options = _arguments(arguments, spec)
    return _call(make, name, positional, options)


def spec_of(thing: object) -> str:
    """The specification of a defense, an attack or an estimator: what differs from the defaults.

    >>> from gradveil import OptimalNoise
    >>> spec_of(OptimalNoise(0.1, cap=10.0))
    'optimal-noise(scale=0.1, cap=10.0)'
    """
    name = _name_of(type(thing))
    given = [f"{key}={_text(value)}" for key, value in _changed(thing).items()]
    if name == "cached":  # its first argument is the defense it wraps
        given[0] = given[0].removeprefix("defense=")
    return f"{name}({', '.join(given)})" if given else name


def _entry(name: str, known: Mapping[str, Entry], kind: str) -> Entry:
    if name not in known:
        raise ValueError(
            f"There is no {kind} named `{name}`.{suggestion(name, known)}"
            f" Known: {', '.join(known)}; or 'package.module:Class' for your own."
        )
    return known[name]


def _imported(name: str, kind: str) -> Callable[..., Any]:
    module, _, attributes = name.partition(":")
    try:
        found = reduce(getattr, attributes.split("."), import_module(module))
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"A {kind} of your own should read 'package.module:Class', importable from here."
            f" Found {name!r}, which fails with `{type(error).__name__}: {error}`."
        ) from error
    if not callable(found):
        raise ValueError(f"`{name}` should be a class or function. Found {type(found).__name__}.")
    return found  # type: ignore[no-any-return]


def _arguments(text: str, spec: str) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments and options; hyphens outside of quotes belong to names."""
    pieces = re.split(r"""("[^"]*"|'[^']*')""", text)
    python = "".join(p if i % 2 else _HYPHEN.sub("_", p) for i, p in enumerate(pieces))
    try:
        call = ast.parse(f"f({python})", mode="eval").body
        assert isinstance(call, ast.Call)
        positional = [_value(argument) for argument in call.args]
        return positional, {str(word.arg): _value(word.value) for word in call.keywords}
    except (SyntaxError, AssertionError, _NotPlainError) as error:
        raise ValueError(
            f"The options in {spec!r} should be plain values or names with options of their own,"
            f" as in `cached(optimal-noise(scale=0.1), refresh_every=10)`. Found {error}."
        ) from None


class _NotPlainError(Exception):
    """An expression that is neither a literal nor a known name."""


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        positional = [_value(argument) for argument in node.args]
        options = {str(word.arg): _value(word.value) for word in node.keywords}
        name = node.func.id.replace("_", "-")
        return _call(_entry(name, EVERYTHING, "part").build, name, positional, options)
    if isinstance(node, ast.Name):
        name = node.id.replace("_", "-")
        return _call(_entry(name, EVERYTHING, "part").build, name, [], {})
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _NotPlainError(f"`{ast.unparse(node)}`") from None


def _call(
    make: Callable[..., Any], name: str, positional: list[Any], options: dict[str, Any]
) -> Any:
    try:
        inspect.signature(make).bind(*positional, **options)
    except TypeError as error:
        raise ValueError(f"`{name}` takes {_signature(make)}. Found a mismatch: {error}.") from None
    try:
        return make(*positional, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}`: {error}") from error


def _signature(make: Callable[..., Any]) -> str:
    parts = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.name == "_" or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        default = parameter.default
        parts.append(
            parameter.name if default is parameter.empty else f"{parameter.name}={default!r}"
        )
    return f"({', '.join(parts)})"


def _name_of(kind: type) -> str:
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
    return {name: now[name] for name, default in pairs if not _same(now[name], default)}


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _text(value: object) -> str:
    if isinstance(value, GaussianPrior):  # samples have no specification
        return f"<{value.name}>"
    plain = (bool, int, float, str, list, tuple, type(None))
    return repr(value) if isinstance(value, plain) else spec_of(value)
