"""Pictures without pyplot: nothing of a user's own plotting is touched."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ._files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of that size in inches, drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: "Figure", path: Path, dpi: int = 110, *, tight: bool = False) -> None:
    """The figure as a PNG file, whole or not at all; `tight` crops it to what is drawn."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, bbox_inches="tight" if tight else None)
    write_atomically(path, content.getvalue())
