"""What several commands take: data, a model, its weights, a device."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import device_of
from gradveil.attacks import Attack
from gradveil.catalog import Spec
from gradveil.data import Dataset, load_dataset
from gradveil.defenses import Defense
from gradveil.models import build_fitting_model, default_model


def load_data(dataset: str, path: Path | None, device: str) -> Dataset:
    """A data set by name, or the user's own from a path."""
    return load_dataset(dataset if path is None else path).to(device_of(device))


def load_model(
    name: str | None, weights: Path | None, data: Dataset, seed: int, device: str
) -> tuple[str, nn.Module]:
    """A model by name or factory (the data's default if `None`), with weights from a file."""
    shape = data.inputs.shape[1:]
    name = name or default_model(shape)
    model = build_fitting_model(name, shape, data.num_classes, seed, allow_imports=True)
    if weights is not None:
        load_weights(model, weights)
    return name, model.to(device_of(device))


def typed_defenses(texts: Sequence[str]) -> list[str | Defense]:
    """What the user typed; import paths, which only the local user may give, are built here."""
    return [_if_imported(text, "defense") or text for text in texts]


def typed_attacks(texts: Sequence[str]) -> list[str | Attack]:
    """The same for attacks."""
    return [_if_imported(text, "attack") or text for text in texts]


def _if_imported(text: str, kind: str) -> Any:
    spec = Spec.parse(text, kind)
    return spec.build(kind, allow_imports=True) if spec.imports else None


def load_weights(model: nn.Module, path: Path) -> None:
    """Put a state dict into a model; a file that could run code is refused."""
    if not path.is_file():
        raise FileNotFoundError(
            f"Parameter `weights` should be a file. Found that `{path}` does not exist."
        )
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(
            f"Parameter `weights` should be a state dict of plain tensors, as `torch.save("
            f"model.state_dict(), path)` writes it. Found that `{path}` holds something else, or"
            f" code, which is not run ({type(error).__name__}). Save the state dict again."
        ) from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(
            "Parameter `weights` should be a state dict, tensors by name. Found"
            f" {type(state).__name__} in `{path}`. Save `model.state_dict()`."
        )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"Parameter `weights` should fit the model {type(model).__name__}. Found {error}"
        ) from None


def split_public(data: Dataset, private: int) -> tuple[tuple[Tensor, Tensor], Any]:
    """The first examples as the private ones, and all others as public ones (`None`: too few)."""
    batch = data.batch(0, private)
    rest = data.inputs[private:], data.targets[private:]
    return batch, rest if len(rest[0]) >= 2 else None
