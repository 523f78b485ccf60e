"""Which clients are asked in a round, and which of its examples a client takes."""

from ._batches import SAMPLINGS, Batches, fixed_size, is_private, told_size
from ._clients import count_asked, sample_clients

__all__ = [
    "SAMPLINGS",
    "Batches",
    "count_asked",
    "fixed_size",
    "is_private",
    "sample_clients",
    "told_size",
]
