"""Matching of gradients, and what is tried before it."""

from ._inverting_gradients import InvertingGradients

__all__ = ["InvertingGradients"]
