"""Checks of the numbers that a privacy statement is made of."""

from gradveil._checks import called, check_choice, check_number
from gradveil._extras import require

NEIGHBOURS = ("add-remove", "replace-one")
UNITS = ("example", "client")


def check_delta(delta: float, name: str = "delta") -> None:
    """Require a number in (0, 1).

    >>> check_delta(1e-5)
    """
    check_number(delta, name)
    if not 0 < delta < 1:
        raise ValueError(
            f"{called(name)} should be in (0, 1), below one over the number of examples. Found"
            f" `{name} = {delta}`. Use for example 1e-5."
        )


def check_probability(value: float, name: str) -> None:
    """Require a number in (0, 1]."""
    check_number(value, name)
    if not 0 < value <= 1:
        raise ValueError(
            f"{called(name)} should be in (0, 1]. Found `{name} = {value}`."
            " For percentages, divide by 100."
        )


def check_neighbours(neighbours: str) -> None:
    """Require a known relation of neighbouring data sets."""
    check_choice(neighbours, "neighbours", NEIGHBOURS)


def require_scipy() -> None:
    """Require what the closed forms need."""
    require("privacy accounting", "gradveil[privacy]", "scipy")


def require_opacus() -> None:
    """Require the accountant of sampled releases."""
    require("privacy accounting", "gradveil[privacy]", "scipy", "opacus")
