"""Signatures of classes and factories, and calls whose errors name them."""

import inspect
from collections.abc import Callable
from typing import Any


def call(
    make: Callable[..., Any], name: str, positional: list[Any], options: dict[str, Any]
) -> Any:
    """`make(*positional, **options)`; arguments that do not fit are an error that says so."""
    try:
        inspect.signature(make).bind(*positional, **options)
    except TypeError as error:
        raise ValueError(f"`{name}` takes {_signature(make)}. Found a mismatch: {error}.") from None
    try:
        return make(*positional, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}`: {error}") from error


def names_of(make: Callable[..., Any]) -> list[str]:
    """The names of the arguments that can be given without one, in order."""
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


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
