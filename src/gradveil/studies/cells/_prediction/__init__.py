"""The cell that trains under noise of one shape, beside what utilities say of it."""

from ._cell import training_prediction
from ._planner import plan

__all__ = ["plan", "training_prediction"]
