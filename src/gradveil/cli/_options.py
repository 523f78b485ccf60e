"""What the commands share: formats, progress, errors that name options, what options load."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import torch
import typer
from click.core import ParameterSource
from rich.console import Console
from rich.progress import Progress
from torch import nn

from gradveil._checks import (
    WrongArgument,
    WrongValue,
    check_finite,
    check_seed,
    device_of,
    first_line,
)
from gradveil.audit import Subject, parse_defense
from gradveil.catalog import Spec
from gradveil.data import Dataset, load_dataset
from gradveil.messages import check_model
from gradveil.models import build_fitting_model, build_loss, default_model

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
        if isinstance(error, WrongArgument):
            if error.argument in (*names, name):
                raise error.renamed(names.get(error.argument, name)) from error
            raise error.described(f"Option `{name}`: {error.subject}") from error
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
    """The option of a parameter, as `--batch-size` of `batch_size`."""
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
    "loss": "cross-entropy, mse, bce, next-token, or package.module:function; default the first.",
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
    last = ""

    def line(what: str, share: float) -> None:
        nonlocal last
        if what != last:
            last = what
            console.print(f"{share:4.0%} {what}", highlight=False)

    if not console.is_terminal:
        yield line
        return
    with Progress(console=console, transient=True, speed_estimate_period=120) as shown:
        task = shown.add_task("starting", total=1.0)
        yield lambda what, share: shown.update(task, description=what, completed=share)


def load_subject(context: typer.Context, private: int) -> tuple[Subject, dict[str, str]]:
    """What the options name, and the options of its parameters.

    The first examples are private, all others public; of text the next token is predicted.
    """
    given = context.params
    weights = None if given["weights"] is None else Path(given["weights"])
    place = device_of(given["device"], "--device")
    with option("--data", "source", "limit"):
        samples = load_dataset(given["data"]).to(place)
    loss, output = given["loss"], given["output"]
    if loss is None and samples.tokens and torch.equal(samples.inputs, samples.targets):
        loss = "next-token"
    with option("--loss", "loss"):
        loss_fn = build_loss(loss, samples.task, allow_imports=True)
    name, network = load_model(given["model"], weights, samples, given["seed"])
    if private > len(samples):
        expected = f"ask for at most the {len(samples)} examples of `{samples.name}`"
        own, advice = "Options `--batch-size` and `--batches`", "Choose a smaller batch."
        raise WrongValue(own, expected, f"{private} in all", advice)
    batch, rest = samples.batch(0, private), (samples.inputs[private:], samples.targets[private:])
    if output is not None and output.removeprefix("-").isdecimal():
        output = int(output)
    subject = Subject(
        network.to(place), loss_fn, batch, rest if len(rest[0]) >= 2 else None, samples, output,
        name=samples.name, model_name=name,
        weights="untrained" if weights is None else weights.name,
    )  # fmt: skip
    return subject, {"loss_fn": "--loss", "targets": "--data", "inputs": "--data"}


def load_model(
    name: str | None, weights: Path | None, data: Dataset, seed: int
) -> tuple[str, nn.Module]:
    """A model by name or factory (the data's default if `None`), with weights from a file."""
    shape = data.inputs.shape[1:]
    if name is None and data.tokens:
        expected = f"name your model of tokens, as package.module:factory, for `{data.name}`"
        raise WrongValue("--model", expected, "none, and there is no usual one")
    name = default_model(shape) if name is None else name
    check_seed(seed, "--seed")
    with option("--model", "options", "model"):
        model = build_fitting_model(name, shape, data.num_classes, seed, allow_imports=True)
    if weights is not None:
        with option("--weights", "weights"):
            load_weights(model, weights)
    with option("--weights" if weights is not None else "--model", "model"):
        check_usable(model)
    return name, model


def check_usable(model: nn.Module) -> None:
    """Require something to train, of finite numbers."""
    check_model(model)
    check_finite(dict(model.named_parameters()), "the model's weights")
    buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    check_finite(buffers, "the model's buffers")


def typed(kind: str, texts: Sequence[str]) -> list[Any]:
    """What the user typed, each built once for its errors, before any work.

    Import paths, which only the local user may give, stay built.
    """
    found: list[Any] = []
    for text in texts:
        spec = Spec.parse(text, kind)
        made = (spec if spec.imports else spec.completed()).build(kind, allow_imports=True)
        if spec.imports and kind == "defense":
            parse_defense(made)  # what it is made of has to be words
        found.append(made if spec.imports else text)
    return found


def load_weights(model: nn.Module, path: Path) -> None:
    """Put a state dict into a model; a file that could run code is refused."""
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"It should be a file. Found that `{path}` {reason}.")
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
        unfit = [key for key, value in state.items() if value.is_complex() or type(key) is not str]
    except MemoryError:
        raise
    except Exception as error:  # torch has many kinds for a file that is cut off or foreign
        written = "be a state dict of plain tensors, as `torch.save(model.state_dict(), path)`"
        kind = f"or holds something else, or code, which is not run ({first_line(error)})"
        found, advice = f"that `{path}` is damaged, {kind}", "Save the state dict again."
        raise WrongValue("weights", f"{written} writes it", found, advice) from None
    try:
        if unfit:
            raise RuntimeError(f"names or numbers of another kind: {unfit[:3]}")
        model.load_state_dict(state)
    except RuntimeError as error:
        expected = f"fit the model {type(model).__name__}"
        raise WrongValue("weights", expected, str(error)) from None
