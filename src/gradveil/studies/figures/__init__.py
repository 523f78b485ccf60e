"""How figures of studies look, and the curves and images that several of them draw."""

from ._curves import Row, bars, defense_curves, level_curve, round_curve
from ._frontier import frontier_panel
from ._images import draw_images
from ._labels import Note, label_points
from ._panels import (
    BLANK,
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
    blank_errors,
    blind_guess,
    figure,
    legend_below,
    mark_levels,
    move_aside,
    no_cells,
    one_scale,
)
from ._summary import draw_summary, verdict_table

__all__ = [
    "BLANK",
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
    "blank_errors",
    "blind_guess",
    "defense_curves",
    "draw_images",
    "draw_summary",
    "figure",
    "frontier_panel",
    "label_points",
    "legend_below",
    "level_curve",
    "mark_levels",
    "move_aside",
    "no_cells",
    "one_scale",
    "round_curve",
    "verdict_table",
]
