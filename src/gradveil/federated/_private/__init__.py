"""How private clients draw their batches, and what their releases add up to."""

from ._batches import SAMPLINGS, Batches, fixed_size, is_private, told_size

__all__ = ["SAMPLINGS", "Batches", "fixed_size", "is_private", "told_size"]
