"""Loading of data, models, weights and devices, shared by the commands."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor, nn

from gradveil._checks import WrongValue, check_finite, check_seed, device_of, first_line
from gradveil.audit import Subject
from gradveil.catalog import Spec
from gradveil.data import Dataset, load_dataset
from gradveil.messages import LossFunction, check_model
from gradveil.models import build_fitting_model, build_loss, default_model

from ._options import option


def load_subject(context: typer.Context, private: int) -> tuple[Subject, dict[str, str]]:
    """What the options name, its first examples private, and the options of its parameters."""
    given = context.params
    weights = None if given["weights"] is None else Path(given["weights"])
    place = device_of(given["device"], "--device")
    with option("--data", "source", "limit"):
        samples = load_dataset(given["data"]).to(place)
    loss_fn = load_loss(given["loss"], samples)
    name, network = load_model(given["model"], weights, samples, given["seed"])
    batch, public = split_public(samples, private)
    subject = Subject(
        network.to(place), loss_fn, batch, public, samples, output_key(given["output"]),
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


def load_loss(name: str | None, data: Dataset) -> LossFunction:
    """A loss by name or import path; of labels cross-entropy if `None`, of text the next token."""
    if name is None and data.tokens and torch.equal(data.inputs, data.targets):
        name = "next-token"
    with option("--loss", "loss"):
        return build_loss(name, data.task, allow_imports=True)


def output_key(text: str | None) -> str | int | None:
    """The key of an output, or its number.

    >>> output_key("logits"), output_key("-1")
    ('logits', -1)
    """
    whole = text is not None and text.removeprefix("-").isdecimal()
    return int(text) if whole and text is not None else text


def check_usable(model: nn.Module) -> None:
    """Require something to train, of finite numbers."""
    check_model(model)
    check_finite(dict(model.named_parameters()), "the model's weights")
    buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    check_finite(buffers, "the model's buffers")


def typed(kind: str, texts: Sequence[str]) -> list[Any]:
    """What the user typed; import paths, which only the local user may give, are built here."""
    specs = [Spec.parse(text, kind) for text in texts]
    return [
        spec.build(kind, allow_imports=True) if spec.imports else text
        for spec, text in zip(specs, texts, strict=True)
    ]


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


def split_public(data: Dataset, private: int) -> tuple[tuple[Tensor, Tensor], Any]:
    """The first examples as the private ones, and all others as public ones (`None`: too few)."""
    if private > len(data):
        expected = f"ask for at most the {len(data)} examples of `{data.name}`"
        own, advice = "Options `--batch-size` and `--batches`", "Choose a smaller batch."
        raise WrongValue(own, expected, f"{private} in all", advice)
    batch = data.batch(0, private)
    rest = data.inputs[private:], data.targets[private:]
    return batch, rest if len(rest[0]) >= 2 else None
