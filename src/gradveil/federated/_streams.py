"""Random streams derived from one seed: the same for the same seed, purpose and place."""

from typing import Literal

import torch

from gradveil._random import named_stream

Purpose = Literal["batches", "defense", "model", "sampling"]


def stream(seed: int, purpose: Purpose, *place: int) -> torch.Generator:
    """A generator for one purpose at one place (client and step, or round).

    It depends on these alone (`named_stream`).

    >>> stream(0, "batches", 3).initial_seed() == stream(0, "batches", 3).initial_seed()
    True
    """
    return named_stream(seed, purpose, *place)
