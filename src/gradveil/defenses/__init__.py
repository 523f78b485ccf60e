"""Defenses: from what is known of a message to the Mechanism that is applied to it.

A defense of one's own has a method `mechanism`, and `shape` where noise is not spread evenly:

>>> import torch
>>> from gradveil import Defense, Moments
>>> from gradveil.mechanisms import Mechanism
>>> class Tenth(Defense):
...     def mechanism(self, shape, moments):
...         return Mechanism(std={n: 0.1 * g2.sqrt() for n, g2 in moments.squared_values.items()})
>>> Tenth().plan(Moments({"w": torch.tensor([1.0, 4.0])}, None, input_size=2)).std["w"]
tensor([0.1000, 0.2000])
"""

from ._base import About, Defended, Defense
from ._fixed import QSGD, LaplaceNoise, NoDefense, OptimalRounding, Rounding, SignCompression
from ._noise import (
    ClampedNoise,
    GradientNoise,
    NoiseDefense,
    OptimalClampedNoise,
    OptimalNoise,
    capped,
    least_square,
    raise_to_least,
    sensitivity_shape,
)
from ._private_noise import PrivateNoise
from ._pruning import GradientPruning, OptimalPruning, PruningDefense, keep_within
from ._rivals import ErrorFeedback, InstaHide, MixUp, Outpost, Pixelization, Soteria

# What `__all__` does not list is for our own packages.
__all__ = [
    "QSGD",
    "About",
    "ClampedNoise",
    "Defended",
    "Defense",
    "ErrorFeedback",
    "GradientNoise",
    "GradientPruning",
    "InstaHide",
    "LaplaceNoise",
    "MixUp",
    "NoDefense",
    "NoiseDefense",
    "OptimalClampedNoise",
    "OptimalNoise",
    "OptimalPruning",
    "OptimalRounding",
    "Outpost",
    "Pixelization",
    "PrivateNoise",
    "PruningDefense",
    "Rounding",
    "SignCompression",
    "Soteria",
]
