"""Matching of gradients, and what is tried before it."""

from ._inverting_gradients import InvertingGradients
from ._matching import DISTANCES

__all__ = ["DISTANCES", "InvertingGradients"]
