"""Defenses: from the Moments of a message to the Mechanism that is applied to it.

A defense of one's own has a method `plan`:

>>> import torch
>>> from gradveil import Defense, Mechanism, Moments
>>> class Tenth(Defense):
...     def plan(self, moments):
...         return Mechanism(std={n: 0.1 * g2.sqrt() for n, g2 in moments.squared_values.items()})
>>> Tenth().plan(Moments({"w": torch.tensor([1.0, 4.0])}, None, input_size=2)).std["w"]
tensor([0.1000, 0.2000])
"""

from ._base import Defense
from ._cached import Cached
from ._defended import Defended
from ._dpsgd import DPSGD
from ._elsewhere import FromServer, Public, Released
from ._gradient_noise import GradientNoise
from ._gradient_pruning import GradientPruning
from ._no_defense import NoDefense
from ._optimal_dpsgd import OptimalDPSGD
from ._optimal_noise import OptimalNoise
from ._optimal_pruning import OptimalPruning
from ._optimal_rounding import OptimalRounding
from ._planning import NoiseDefense, allowed_trace, keep_within
from ._private import PrivateNoise
from ._pruning import PruningDefense
from ._rivals import (
    QSGD,
    ErrorFeedback,
    InstaHide,
    LaplaceNoise,
    MixUp,
    Outpost,
    Pixelization,
    SignCompression,
    Soteria,
)
from ._rounding import Rounding

__all__ = [
    "DPSGD",
    "QSGD",
    "Cached",
    "Defended",
    "Defense",
    "ErrorFeedback",
    "FromServer",
    "GradientNoise",
    "GradientPruning",
    "InstaHide",
    "LaplaceNoise",
    "MixUp",
    "NoDefense",
    "NoiseDefense",
    "OptimalDPSGD",
    "OptimalNoise",
    "OptimalPruning",
    "OptimalRounding",
    "Outpost",
    "Pixelization",
    "PrivateNoise",
    "PruningDefense",
    "Public",
    "Released",
    "Rounding",
    "SignCompression",
    "Soteria",
    "allowed_trace",
    "keep_within",
]
