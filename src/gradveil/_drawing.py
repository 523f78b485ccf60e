"""Figures drawn and saved without pyplot, so that a user's own plotting stays untouched."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._files import write_atomically
from ._imports import require

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

_WITHOUT_ORIGIN: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None},
}


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of that size in inches, drawn without a screen."""
    require("drawing", "gradveil[audit]", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: Path, dpi: int = 110, *, tight: bool = False) -> None:
    """Write a figure as PDF if the path ends in .pdf, else as PNG, whole or not at all.

    The same plot gives the same bytes: no date and no program is noted in the file. `tight` crops
    it to what is drawn.
    """
    content, kind = io.BytesIO(), "pdf" if path.suffix == ".pdf" else "png"
    box = "tight" if tight else None
    figure.savefig(content, format=kind, dpi=dpi, bbox_inches=box, metadata=_WITHOUT_ORIGIN[kind])
    write_atomically(path, content.getvalue())
