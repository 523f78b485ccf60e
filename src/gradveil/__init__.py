"""Optimal, parameter-specific defenses for the gradients that federated clients share.

>>> import torch
>>> from torch import nn
>>> import gradveil
>>> model, inputs, targets = nn.Linear(4, 3), torch.ones(2, 4), torch.tensor([0, 2])
>>> message = gradveil.GradientMessage(model, nn.functional.cross_entropy, targets)
>>> sent = gradveil.OptimalNoise(scale=0.1)(message, inputs)
>>> sorted(sent)
['bias', 'weight']
"""

import importlib
from typing import TYPE_CHECKING

from ._checks import NonFiniteError
from .defenses import (
    ClampedNoise,
    Defended,
    Defense,
    GradientNoise,
    GradientPruning,
    NoDefense,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    PrivateNoise,
    Rounding,
)
from .messages import AdaptedModel, GradientMessage, LocalUpdateMessage, Message, ModelError
from .sensitivity import Moments, measure
from .shapes import FromServer, Public
from .theory import Bound, GaussianPrior, reconstruction_bound, utility

if TYPE_CHECKING:
    from .attacks import Observation
    from .data import load_dataset
    from .scoring import score

__version__ = "0.1.0"

__all__ = [
    "AdaptedModel",
    "Bound",
    "ClampedNoise",
    "Defended",
    "Defense",
    "FromServer",
    "GaussianPrior",
    "GradientMessage",
    "GradientNoise",
    "GradientPruning",
    "LocalUpdateMessage",
    "Message",
    "ModelError",
    "Moments",
    "NoDefense",
    "NonFiniteError",
    "Observation",
    "OptimalClampedNoise",
    "OptimalNoise",
    "OptimalPruning",
    "OptimalRounding",
    "PrivateNoise",
    "Public",
    "Rounding",
    "load_dataset",
    "measure",
    "reconstruction_bound",
    "score",
    "utility",
]

_ROOMS = ("attacks", "audit", "catalog", "data", "denoising", "models", "privacy", "scoring")
_LAZY = dict(zip(_ROOMS, _ROOMS, strict=True))
_LAZY |= {"Observation": "attacks", "load_dataset": "data", "score": "scoring"}
"""What is built on the core, and the package to import when it is first asked for."""

if not TYPE_CHECKING:  # type checkers read the imports above

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(f"{__name__}.{_LAZY[name]}")
        globals()[name] = home if _LAZY[name] == name else getattr(home, name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
