"""Inverting max-pools: where the largest entries were, and the features before them."""

from ._features import Cooling
from ._unpool import Unpool

__all__ = ["Cooling", "Unpool"]
