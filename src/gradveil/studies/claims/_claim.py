"""A claim of the paper, and the units and margins of its differences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradveil.studies.runner import StoreResults
from gradveil.studies.shared import Units

Measure = Callable[[StoreResults], Units]
ERROR, DECIBEL, LOSS = "MSE, normalised units", "PSNR, dB", "loss, nats"

SIMILAR_ERROR = 0.1
"""Single runs of one cell differ by about as much (unmatched MSE of 16 MNIST images)."""
SIMILAR_LOSS = 0.03
"""A tenth of what training with little noise gains in the five steps."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, and how its differences are taken in each variant."""

    name: str
    text: str
    source: str
    unit: str
    variants: Mapping[str, Measure]
    margin: float | None = None
    """For claims of similarity: how much counts as similar."""
