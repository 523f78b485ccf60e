"""Every public class and function is shown at work in a docstring, which pytest runs."""

import inspect
import re
from importlib import import_module

import pytest

PACKAGES = (
    "gradveil",
    "gradveil.attacks",
    "gradveil.catalog",
    "gradveil.data",
    "gradveil.defenses",
    "gradveil.denoising",
    "gradveil.mechanisms",
    "gradveil.models",
    "gradveil.shapes",
    "gradveil.privacy",
    "gradveil.scoring",
)
"""Packages whose public names all have an example."""
SHOWN = ("gradveil", "gradveil.defenses", "gradveil.audit")
"""Packages whose examples count for all others."""


def described(package: str) -> dict[str, object]:
    """The public classes and functions of a package; nobody makes an exception or a protocol."""
    module = import_module(package)
    things = {name: getattr(module, name) for name in module.__all__}
    return {
        name: thing
        for name, thing in things.items()
        if inspect.isfunction(thing)
        or (
            inspect.isclass(thing)
            and not issubclass(thing, BaseException)
            and not is_protocol(thing)
        )
    }


def is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def examples(docstring: str | None) -> str:
    """The lines of a docstring that doctest runs."""
    lines = (docstring or "").splitlines()
    return "\n".join(line for line in lines if line.lstrip().startswith((">>>", "...")))


def methods(thing: object) -> list[object]:
    return list(vars(thing).values()) if inspect.isclass(thing) else []


def all_examples(package: str) -> str:
    """Those of the package, of its public names and of their methods."""
    things = described(package)
    shown = [examples(import_module(package).__doc__)]
    for thing in things.values():
        shown += [examples(inspect.getdoc(thing)) for thing in (thing, *methods(thing))]
    return "\n".join(shown)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_an_example(package: str) -> None:
    """In its own docstring, or, for what is only made or used with another, in that one's."""
    shown = "\n".join(all_examples(each) for each in (package, *SHOWN))
    missing = [
        name
        for name, thing in described(package).items()
        if not examples(inspect.getdoc(thing)) and not re.search(rf"\b{name}\b", shown)
    ]
    assert missing == [], f"these should have an example: {missing}"
