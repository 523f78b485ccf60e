"""Gradient accumulation: one defended step from several micro-batches."""

from ._accumulation import Accumulation, add_to_grad
from ._observer import Observer, checked_values, observe_values

__all__ = ["Accumulation", "Observer", "add_to_grad", "checked_values", "observe_values"]
