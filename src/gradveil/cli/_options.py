"""What the commands share: formats, progress, and errors that name options."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress

from gradveil._checks import WrongArgument, WrongValue

Tell = Callable[[str, float], None]
"""Takes (what is running, the share that is done)."""


Format = Literal["table", "json"]
Data = Annotated[
    str,
    typer.Option(
        "--data", "--dataset", help="mnist, cifar10 (embedded), an .npz file, a folder, or hf:NAME."
    ),
]
AsFormat = Annotated[Format, typer.Option(help="Tables, or JSON for machines.")]

USER_ERRORS = (ValueError, TypeError, OSError, ImportError)
"""What a mistake of the user's raises; everything else is a mistake of ours."""


@contextmanager
def option(name: str, *parameters: str, **others: str) -> Iterator[None]:
    """Errors inside name this option, in place of the parameters that it fills, or of others'."""
    names = {**dict.fromkeys(parameters, name), **others}
    try:
        yield
    except USER_ERRORS as error:
        if isinstance(error, WrongArgument) and error.argument in (*names, name):
            raise error.renamed(names.get(error.argument, name)) from error
        kind = type(error) if isinstance(error, OSError) else ValueError
        raise kind(f"Option `{name}`: {error}") from error


@contextmanager
def options(context: typer.Context, **others: str) -> Iterator[None]:
    """Wrong arguments inside name the command's options, each in place of its parameter.

    Those of `others` are options of another name.
    """
    names = {**{name: option_of(name) for name in context.params}, **others}
    try:
        yield
    except WrongArgument as error:
        raise error.renamed(names.get(error.argument, error.argument)) from error


def option_of(name: str) -> str:
    """The option of a parameter.

    >>> option_of("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def given(context: typer.Context, kind: type) -> dict[str, Any]:
    """The options that are fields of a dataclass, but for those that are left open."""
    names = [each.name for each in fields(kind) if context.params.get(each.name) is not None]
    return {name: context.params[name] for name in names}


@dataclass(frozen=True)
class SubjectOptions:
    """What model, beside the data, and with what loss: what `load_subject` reads."""

    model: str | None = None
    weights: Path | None = None
    loss: str | None = None
    output: str | None = None
    seed: int = 0
    device: str = "cpu"


HELPS = {
    "model": "A name, conv-net(width=16), or package.module:factory.",
    "weights": "A state dict (no code is run).",
    "loss": "cross-entropy, mse, bce, next-token, or package.module:function; the first if left.",
    "output": "The output that the loss takes, by key or number, of several.",
    "seed": "Of everything random.",
    "device": "As cpu or cuda:0.",
}


Command = Callable[..., None]


def with_fields(kind: type, helps: Mapping[str, str]) -> Callable[[Command], Command]:
    """Give a command options for some fields of a dataclass, with their defaults, as `**others`.

    Args:
        kind: The dataclass.
        helps: These fields, and what is said of them.
    """
    types, keyword = get_type_hints(kind), inspect.Parameter.KEYWORD_ONLY
    more = [
        inspect.Parameter(
            each.name,
            keyword,
            default=each.default,
            annotation=Annotated[types[each.name], typer.Option(help=helps[each.name])],
        )
        for each in fields(kind)
        if each.name in helps
    ]

    def changed(command: Command) -> Command:
        parameters = inspect.signature(command).parameters.values()
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        command.__signature__ = inspect.Signature([*named, *more])  # type: ignore[attr-defined]
        return command

    return changed


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the user gave the option of this parameter."""
    return context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)


def useless(context: typer.Context, where: str, names: Iterable[str]) -> None:
    """Refuse options that would be ignored: they were given, and what needs them was not."""
    for name in names:
        if is_given(context, name):
            option, value = option_of(name), context.params[name]
            typed = option if value is True else f"{option} {value}"
            raise WrongValue(option, f"be left out {where}", f"`{typed}`")


def check_values_given(words: Sequence[str]) -> None:
    """Refuse options with an empty value: as a path it would mean the folder at hand."""
    for before, word in zip(["", *words], words, strict=False):
        name, sign, value = word.partition("=")
        typed = name if sign and not value else before if not word else ""
        if typed.startswith("--"):
            raise WrongValue(typed, "have a value", "''", "Leave it out.")


@contextmanager
def bar(console: Console) -> Iterator[Tell]:
    """What is running, how much is done, the time left; a line for each part where it is a file."""
    if not console.is_terminal:
        yield _lines(console)
        return
    with Progress(console=console, transient=True, speed_estimate_period=120) as shown:
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
