"""The cell that trains with (ε, δ)."""

from ._cell import private_training

__all__ = ["private_training"]
