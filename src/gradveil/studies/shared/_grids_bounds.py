"""The presets of the bounds that hold for real images, beside the Gaussian reference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class HonestGrid:
    """Candidates for each image that is attacked, and what a prior is learned from."""

    candidates: int
    trials: int
    """Draws of the noise for each image."""
    population: Mapping[str, int]
    """From which candidates are drawn."""
    learned: Mapping[str, Any] | None = None
    """Settings of the cell with a learned prior, which takes minutes; None: none."""


_HONEST = HonestGrid(256, 16, {"start": 2100, "count": 2900})

HONEST = {
    "quick": replace(_HONEST, candidates=32, trials=4),
    "standard": _HONEST,
    "paper": replace(
        _HONEST,
        trials=32,
        learned={
            "start": 0,
            "batches": 8,
            "prior": {"start": 5000, "count": 5000, "steps": 2000},
            "probes": 16,
            "seed": 0,
        },
    ),
}
