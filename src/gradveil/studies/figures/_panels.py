"""The look of all figures: colours that colour-blind readers tell apart, markers, files."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradveil._drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW, save_figure
from gradveil._extras import require
from gradveil.studies.runner import Entry, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import Container
    from matplotlib.figure import Figure

LEGEND_WIDTH = 0.98
"""Of the figure's, at most: the last letter should not touch the edge."""

COLOURS = {
    "no-defense": BLACK,
    "gradient-pruning": ORANGE,
    "optimal-pruning": BLUE,
    "dpsgd": RED,
    "optimal-dpsgd": GREEN,
    "gradient-noise": RED,
    "optimal-noise": GREEN,
}
MARKERS = {
    "no-defense": "x",
    "gradient-pruning": "o",
    "optimal-pruning": "s",
    "dpsgd": "^",
    "optimal-dpsgd": "D",
    "gradient-noise": "^",
    "optimal-noise": "D",
}
LINES = {
    "no-defense": ":",
    "gradient-pruning": "-",
    "optimal-pruning": "--",
    "dpsgd": "-",
    "optimal-dpsgd": "--",
    "gradient-noise": "-",
    "optimal-noise": "--",
}
OTHERS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK, YELLOW)
SHAPES = "osD^vPX*"
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), "-", "--")

BLANK = "blank_mse"
"""What tables call the error of an image of the mean colour."""

MSE = "reconstruction MSE (normalised units)"
PSNR = "PSNR (dB, pixels in [0, 1])"
RATIO = "pruning ratio (% of entries)"
SCALE = "noise scale (root mean square)"

STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8.5,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "gradveil",
}


@contextmanager
def figure(
    stem: Path, columns: int = 1, rows: int = 1, width: float = 3.4, height: float = 2.7
) -> Iterator[tuple["Figure", "list[Axes]"]]:
    """A figure of rows × columns panels, written to ``stem.png`` and ``stem.pdf`` at the end."""
    require("drawing", "gradveil[audit]", "matplotlib")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        made = Figure(figsize=(width * columns, height * rows), layout="constrained")
        FigureCanvasAgg(made)
        axes = made.subplots(rows, columns, squeeze=False)
        yield made, [*axes.flat]
        save(made, stem)


def save(made: "Figure", stem: Path) -> None:
    """PNG for screens, PDF for print."""
    for suffix in ("png", "pdf"):
        save_figure(made, stem.with_name(f"{stem.name}.{suffix}"), dpi=200)


def no_cells(axis: "Axes") -> None:
    """Say that there is nothing to show yet."""
    axis.text(0.5, 0.5, "no finished cells", ha="center", va="center", transform=axis.transAxes)


def blind_guess(line: Callable[..., Any], errors: Iterable[Entry]) -> None:
    """Mark the error of an image of the mean colour, if it is known.

    Args:
        line: `axis.axvline` or `axis.axhline`.
        errors: Of single defenses; the first that is known stands for all, which share batches.
    """
    known = [error for error in errors if error is not None]
    if known:
        line(known[0], color="0.4", ls="-.", lw=0.9, label="blind guess", zorder=0)


def blank_errors(table: Table) -> list[float]:
    """The known errors of a blind guess in a table with a row for each defense and metric."""
    means = [row["mean"] for row in table.as_dicts() if row["metric"] == BLANK]
    return [float(mean) for mean in means if mean is not None]


def caption(made: "Figure", text: str) -> None:
    """One small line under the panels."""
    made.supxlabel(text, fontsize=7, color="0.35")


def mark_levels(axis: "Axes", levels: list[float], percent: bool) -> None:
    """Ticks at the levels themselves: percentages, or scales on a logarithmic axis."""
    if not percent and all(level > 0 for level in levels):
        axis.set_xscale("log")
    axis.set_xticks(levels, [f"{level * 100:g}" if percent else f"{level:g}" for level in levels])
    axis.minorticks_off()
    axis.margins(x=0.1)


def one_scale(axes: "list[Axes]", bottom: float | None = None, least_top: float = -inf) -> None:
    """The same vertical range for all panels that show something, up to `least_top` or above."""
    shown = [axis for axis in axes if axis.has_data()]
    limits = [axis.get_ylim() for axis in shown]
    for axis in shown:
        low = min(low for low, _ in limits) if bottom is None else bottom
        axis.set_ylim(low, max(least_top, *(high for _, high in limits)))


def apart(place: int, count: int, points: float = 3.5) -> float:
    """How far one of several curves is drawn aside, in points, so that bars do not hide bars."""
    return points * (place - (count - 1) / 2)


def move_aside(axis: "Axes", drawn: "Container", points: float) -> None:
    """Draw what has been drawn somewhat to the right; the limits of the axes stay as they are."""
    from matplotlib.transforms import ScaledTranslation

    figure = axis.get_figure()
    assert figure is not None
    shift = ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)
    for artist in drawn.get_children():
        artist.set_transform(axis.transData + shift)


def legend_below(made: "Figure", axes: "list[Axes]", columns: int = 4) -> None:
    """One legend for all panels, under them: what is in any of them, once.

    It has as many columns as asked for, or as many as fit into the figure's width.
    """
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    for count in range(min(columns, len(found)), 0, -1):
        legend = made.legend([*found.values()], [*found], loc="outside lower center", ncols=count)
        if count == 1 or legend.get_window_extent().width <= LEGEND_WIDTH * made.bbox.width:
            return
        legend.remove()
