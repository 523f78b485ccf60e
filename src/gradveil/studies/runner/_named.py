"""What a cell's settings name: entries of the catalog, and modules of a user's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from gradveil.catalog import EVERYTHING, Spec

_REGISTERED = "catalog:"


def names_in(text: str) -> frozenset[str]:
    """All that settings, as JSON, name: ``catalog:NAME``, or the module of a user's own class.

    >>> sorted(names_in('{"defense": "optimal-noise(0.1)", "size": 4}'))
    ['catalog:optimal-noise']
    """
    return frozenset(name for word in _words(json.loads(text)) for name in names_in_text(word))


@cache
def names_in_text(text: str) -> tuple[str, ...]:
    """What one specification and its parts name; nothing where the text is none.

    >>> names_in_text("adaptive(unaware=strong(steps=9))"), names_in_text("Some words.")
    (('catalog:adaptive', 'catalog:strong'), ())
    """
    try:
        names = [*_names(Spec.parse(text, allow_words=True))]
    except ValueError:
        return ()
    modules = [name.partition(":")[0] for name in names if ":" in name]
    return (*(f"{_REGISTERED}{name}" for name in names if name in EVERYTHING), *modules)


def is_registered(source: str) -> bool:
    """Whether this is a name of the catalog, not a module."""
    return source.startswith(_REGISTERED)


def entry_module(source: str) -> str:
    """Where that which a name of the catalog stands for is defined."""
    module: str = EVERYTHING[source.removeprefix(_REGISTERED)].build.__module__
    return module


def entry_text(source: str) -> str:
    """All that the catalog says of a name which may show in results."""
    entry = EVERYTHING[source.removeprefix(_REGISTERED)]
    return f"{entry_module(source)}:{entry.build.__qualname__} {sorted(entry.amounts.items())}"


def _names(value: Any) -> Iterator[str]:
    """Of a specification and its parts."""
    if isinstance(value, Spec):
        yield value.name
    inner = value.arguments.values() if isinstance(value, Spec) else value
    if isinstance(value, (Spec, list, tuple)):
        for part in inner:
            yield from _names(part)


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _words(part)
