"""Checks of the name and the options of a specification."""

import re
from collections.abc import Mapping
from typing import Any

_NAME = re.compile(r"[^\s()\[\],='\"]+")


def check_name(name: object) -> None:
    """Require a name that text can hold, and that is no word for a value."""
    reserved = ("True", "False", "None", "inf")
    if not isinstance(name, str) or name in reserved or not _NAME.fullmatch(name):
        raise ValueError(
            "Parameter `name` should be a name as the catalog lists it, or package.module:Class."
            f" Found {name!r}; specifications should read `name` or `name(option=value, ...)`."
        )


def check_keys(arguments: Mapping[int | str, Any], name: str) -> None:
    """Require options, and positions without a gap."""
    places = sorted(key for key in arguments if isinstance(key, int))
    options = [key for key in arguments if not isinstance(key, int)]
    if places != [*range(len(places))] or not all(option.isidentifier() for option in options):
        raise ValueError(
            f"Parameter `arguments` of `{name}` should have options as keys, or positions from 0."
            f" Found {[*arguments]}."
        )
