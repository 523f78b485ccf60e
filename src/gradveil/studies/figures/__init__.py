"""How figures of studies look, and the curves and images that several of them draw."""

from ._curves import Row, bars, defense_curves, level_curve, round_curve
from ._images import draw_images
from ._panels import (
    COLOURS,
    DASHES,
    MARKERS,
    MSE,
    OTHERS,
    PSNR,
    RATIO,
    SCALE,
    SHAPES,
    figure,
    mark_levels,
    no_cells,
    one_scale,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "MARKERS",
    "MSE",
    "OTHERS",
    "PSNR",
    "RATIO",
    "SCALE",
    "SHAPES",
    "Row",
    "bars",
    "defense_curves",
    "draw_images",
    "figure",
    "level_curve",
    "mark_levels",
    "no_cells",
    "one_scale",
    "round_curve",
]
