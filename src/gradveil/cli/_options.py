"""What the commands share: formats, progress, and errors that name options."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gradveil._checks import WrongArgument

Tell = Callable[[str, float], None]
"""Takes (what is running, the share that is done)."""


Format = Literal["table", "json"]
"""Tables to read, or JSON for machines."""

DatasetName = Annotated[
    str | None,
    typer.Option(help="mnist, cifar10 (embedded), or hf:NAME.", show_default="mnist"),
]
DataPath = Annotated[Path | None, typer.Option(help="Your own data: an .npz file or a folder.")]
ModelName = Annotated[
    str | None, typer.Option(help="A name, conv-net(width=16), or package.module:factory.")
]
WeightsPath = Annotated[Path | None, typer.Option(help="A state dict (no code is run).")]
LossName = Annotated[
    str | None,
    typer.Option(
        help="cross-entropy, mse, bce, next-token, or package.module:function.",
        show_default="cross-entropy",
    ),
]
OutputKey = Annotated[
    str | None, typer.Option(help="The output that the loss takes, by key or number, of several.")
]
Seed = Annotated[int, typer.Option(help="Of everything random.")]
Device = Annotated[str, typer.Option(help="As cpu or cuda:0.")]
AsFormat = Annotated[Format, typer.Option(help="Tables, or JSON for machines.")]

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
        found, named = _in_options(error, dict.fromkeys(parameters, name))
        raise (found if named else _again(error, f"Option `{name}`: {error}")) from error


@contextmanager
def options(names: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name options, each in place of its parameter."""
    try:
        yield
    except USER_ERRORS as error:
        if isinstance(error, WrongArgument) and error.argument in MISSPELT:
            raise ValueError(f"Option `--defense`: {error}") from error
        raise _in_options(error, names)[0] from error


def _in_options(error: Exception, names: Mapping[str, str]) -> tuple[Exception, bool]:
    """The error of an option in place of that of its parameter, and whether it is one of these.

    Packages whose errors are texts still say "Parameter `name`"; what they say is kept, with the
    option's name in it.

    >>> from gradveil._checks import WrongValue
    >>> wrong = WrongValue("lr", "be above 0", "0", assigned=True)
    >>> print(_in_options(wrong, {"lr": "--lr"})[0])
    Option `--lr` should be above 0. Found `--lr = 0`.
    """
    if isinstance(error, WrongArgument):
        name = names.get(error.argument)
        same = error.argument in names.values()
        return (error, same) if name is None else (error.renamed(name), True)
    text = str(error)
    for parameter, name in names.items():
        text = text.replace(f"Parameter `{parameter}`", f"Option `{name}`")
        text = text.replace(f"`{parameter} = ", f"`{name} = ")
    return _again(error, text), text != str(error)


def own_options(*names: str) -> dict[str, str]:
    """Parameters that are options of the same name.

    >>> own_options("batch_size")
    {'batch_size': '--batch-size'}
    """
    return {name: f"--{name.replace('_', '-')}" for name in names}


def useless(name: str, value: object, needed: bool, where: str) -> None:
    """Refuse an option that would be ignored: it was given, and what needs it was not."""
    if value is not None and value is not False and not needed:
        typed = name if value is True else f"{name} {value}"
        raise ValueError(f"Option `{name}` should be left out {where}. Found `{typed}`.")


def check_values_given(words: Sequence[str]) -> None:
    """Refuse options with an empty value: as a path it would mean the folder at hand."""
    for before, word in zip(["", *words], words, strict=False):
        name, sign, value = word.partition("=")
        typed = name if sign and not value else before if not word else ""
        if typed.startswith("--"):
            raise ValueError(f"Option `{typed}` should have a value. Found ''. Leave it out.")


def data_source(dataset: str | None, data: str | Path | None) -> tuple[str, str | Path]:
    """The option that names the data, and what it says."""
    if dataset is not None and data is not None:
        raise ValueError(
            f"Options `--data` and `--dataset` should not be given together. Found `--data {data}`"
            f" and `--dataset {dataset}`. Leave one out."
        )
    if data is not None:
        return "--data", data
    return "--dataset", "mnist" if dataset is None else dataset


def _again(error: Exception, text: str) -> Exception:
    """The same kind of error with another text."""
    try:
        return type(error)(text)  # type: ignore[return-value]
    except TypeError:  # one that takes more than a text
        return ValueError(text)


@contextmanager
def bar(console: Console) -> Iterator[Tell]:
    """What is running, how much is done, the time left; a line for each part where it is a file."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120) as shown:
        task = shown.add_task("starting", total=1.0)
        yield lambda what, share: shown.update(task, description=what, completed=share)


def _lines(console: Console) -> Tell:
    last = ""

    def tell(what: str, share: float) -> None:
        nonlocal last
        if what != last:
            last = what
            console.print(f"{share:4.0%} {what}", highlight=False)

    return tell
