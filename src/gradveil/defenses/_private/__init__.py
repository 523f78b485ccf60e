"""Noise with a formal (ε, δ) guarantee: every example, or the whole update, is clipped first."""

from ._private_noise import PrivateNoise

__all__ = ["PrivateNoise"]
