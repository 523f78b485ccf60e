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

from typing import TYPE_CHECKING

from ._checks import NonFiniteError
from ._lazy import lazy_attributes
from .defenses import (
    QSGD,
    ClampedNoise,
    Defended,
    Defense,
    ErrorFeedback,
    GradientNoise,
    GradientPruning,
    InstaHide,
    LaplaceNoise,
    MixUp,
    NoDefense,
    OptimalClampedNoise,
    OptimalNoise,
    OptimalPruning,
    OptimalRounding,
    Outpost,
    Pixelization,
    PrivateNoise,
    Rounding,
    SignCompression,
    Soteria,
)
from .mechanisms import Mechanism, RoundingMechanism
from .messages import (
    AdaptedModel,
    ClippedMessage,
    ClippedUpdate,
    GradientMessage,
    LocalUpdateMessage,
    Message,
    ModelError,
    TokenGradient,
)
from .sensitivity import Exact, HiddenPathWarning, Moments, PerExample, Sketch, Structured, measure
from .shapes import FromServer, Public
from .theory import (
    Bound,
    BoundCase,
    GaussianPrior,
    Utility,
    expected_decrease,
    fisher_trace,
    gain_over_isotropic,
    mean_bound,
    plan_information,
    plan_information_trace,
    reconstruction_bound,
    share_of_optimum,
    utility,
)

if TYPE_CHECKING:
    from .attacks import Observation, ThreatModel
    from .audit import AuditResult
    from .data import load_dataset
    from .scoring import score

__version__ = "0.1.0"

__all__ = [
    "QSGD",
    "AdaptedModel",
    "AuditResult",
    "Bound",
    "BoundCase",
    "ClampedNoise",
    "ClippedMessage",
    "ClippedUpdate",
    "Defended",
    "Defense",
    "ErrorFeedback",
    "Exact",
    "FromServer",
    "GaussianPrior",
    "GradientMessage",
    "GradientNoise",
    "GradientPruning",
    "HiddenPathWarning",
    "InstaHide",
    "LaplaceNoise",
    "LocalUpdateMessage",
    "Mechanism",
    "Message",
    "MixUp",
    "ModelError",
    "Moments",
    "NoDefense",
    "NonFiniteError",
    "Observation",
    "OptimalClampedNoise",
    "OptimalNoise",
    "OptimalPruning",
    "OptimalRounding",
    "Outpost",
    "PerExample",
    "Pixelization",
    "PrivateNoise",
    "Public",
    "Rounding",
    "RoundingMechanism",
    "SignCompression",
    "Sketch",
    "Soteria",
    "Structured",
    "ThreatModel",
    "TokenGradient",
    "Utility",
    "expected_decrease",
    "fisher_trace",
    "gain_over_isotropic",
    "load_dataset",
    "mean_bound",
    "measure",
    "plan_information",
    "plan_information_trace",
    "reconstruction_bound",
    "score",
    "share_of_optimum",
    "utility",
]

_LAZY = {
    "AuditResult": "audit",
    "Observation": "attacks",
    "ThreatModel": "attacks",
    "attacks": "attacks",
    "audit": "audit",
    "catalog": "catalog",
    "data": "data",
    "denoising": "denoising",
    "load_dataset": "data",
    "models": "models",
    "privacy": "privacy",
    "score": "scoring",
    "scoring": "scoring",
}
"""What is built on the core, and the package to import when it is first asked for."""

if not TYPE_CHECKING:  # type checkers read the imports above
    __getattr__ = lazy_attributes(__name__, _LAZY)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
