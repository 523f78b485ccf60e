"""Names of a package that are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A `__getattr__` for a package.

    Args:
        package: The package's `__name__`.
        homes: For each name the submodule that defines it. A name that is its own home is the
            submodule itself.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(f"{package}.{homes[name]}")
        value = home if homes[name] == name else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
