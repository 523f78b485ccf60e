"""Random streams derived from one seed: the same for the same seed, purpose and place."""

import hashlib
from typing import Literal

import torch

Purpose = Literal["batches", "defense", "model", "sampling"]


def stream(seed: int, purpose: Purpose, *place: int) -> torch.Generator:
    """A generator for one purpose at one place (client and step, or round).

    Its seed is the first 8 bytes of SHA-256 of ``"gradveil/<seed>/<purpose>/<place>/..."``, so it
    depends on nothing else: not on the process, the platform, or what was drawn before.

    >>> stream(0, "batches", 3).initial_seed() == stream(0, "batches", 3).initial_seed()
    True
    """
    text = "/".join(str(part) for part in ("gradveil", seed, purpose, *place))
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
