"""How figures of studies look, and the curves and images that several of them draw."""

from ._curves import Row, bars, defense_curves, level_curve, round_curve
from ._images import draw_images
from ._labels import Note, label_points
from ._panels import (
    COLOURS,
    DASHES,
    LINES,
    MARKERS,
    MSE,
    OTHERS,
    PSNR,
    RATIO,
    SCALE,
    SHAPES,
    apart,
    figure,
    legend_below,
    mark_levels,
    move_aside,
    no_cells,
    one_scale,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "LINES",
    "MARKERS",
    "MSE",
    "OTHERS",
    "PSNR",
    "RATIO",
    "SCALE",
    "SHAPES",
    "Note",
    "Row",
    "apart",
    "bars",
    "defense_curves",
    "draw_images",
    "figure",
    "label_points",
    "legend_below",
    "level_curve",
    "mark_levels",
    "move_aside",
    "no_cells",
    "one_scale",
    "round_curve",
]
