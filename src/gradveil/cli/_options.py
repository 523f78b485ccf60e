"""Errors that name command-line options, and a check for options without effect."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

USER_ERRORS = (ValueError, TypeError, OSError, ImportError)
"""What a mistake of the user's raises; everything else is a mistake of ours."""

MISSPELT = ("target_error", "utility_budget", "noise", "prior", "cap", "floor")
"""Parameters of a defense, of which only a plan on real numbers can tell that they are wrong."""


@contextmanager
def option(name: str, *parameters: str) -> Iterator[None]:
    """Errors inside name this option, in place of the parameters that it fills."""
    try:
        yield
    except USER_ERRORS as error:
        text = in_options(str(error), dict.fromkeys(parameters, name))
        raise _again(error, text if f"`{name}`" in text else f"Option `{name}`: {text}") from error


@contextmanager
def options(names: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name options, each in place of its parameter."""
    try:
        yield
    except USER_ERRORS as error:
        text = in_options(str(error), names)
        if any(text.startswith(f"Parameter `{name}`") for name in MISSPELT):
            text = f"Option `--defense`: {text}"
        raise _again(error, text) from error


def in_options(text: str, names: Mapping[str, str]) -> str:
    """An error's text with options in place of parameters.

    >>> in_options("Parameter `lr` should be above 0. Found `lr = 0`.", {"lr": "--lr"})
    'Option `--lr` should be above 0. Found `--lr = 0`.'
    """
    for parameter, name in names.items():
        text = text.replace(f"Parameter `{parameter}`", f"Option `{name}`")
        text = text.replace(f"`{parameter} = ", f"`{name} = ")
    return text


def own_options(*names: str) -> dict[str, str]:
    """Parameters that are options of the same name.

    >>> own_options("batch_size")
    {'batch_size': '--batch-size'}
    """
    return {name: f"--{name.replace('_', '-')}" for name in names}


def useless(name: str, value: object, needed: bool, where: str) -> None:
    """Refuse an option that would be ignored: it was given, and what needs it was not."""
    if value is not None and value is not False and not needed:
        typed = f"{name}" if value is True else f"{name} {getattr(value, 'value', value)}"
        raise ValueError(f"Option `{name}` should be left out {where}. Found `{typed}`.")


def check_values_given(words: Sequence[str]) -> None:
    """Refuse options with an empty value: as a path it would mean the folder at hand."""
    for before, word in zip(["", *words], words, strict=False):
        name, sign, value = word.partition("=")
        typed = name if sign and not value else before if not word else ""
        if typed.startswith("--"):
            raise ValueError(f"Option `{typed}` should have a value. Found ''. Leave it out.")


def data_source(
    dataset: str | None, data: str | Path | None, default: str = "mnist"
) -> tuple[str, str | Path]:
    """The option that names the data, and what it says."""
    if dataset is not None and data is not None:
        raise ValueError(
            f"Options `--data` and `--dataset` should not be given together. Found `--data {data}`"
            f" and `--dataset {dataset}`. Leave one out."
        )
    if data is not None:
        return "--data", data
    return "--dataset", default if dataset is None else dataset


def _again(error: BaseException, text: str) -> Exception:
    """The same kind of error with another text."""
    try:
        return type(error)(text)  # type: ignore[return-value]
    except TypeError:  # one that takes more than a text
        return ValueError(text)
