"""The look of all figures."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import ScaledTranslation
from numpy.typing import NDArray
from torch import Tensor

from gradveil._drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    YELLOW,
    new_figure,
    save_figure,
)

from .grids import LAYERS, PRIVATE
from .numbers import label_of, number
from .study import Entry, Row, Table

Look = Mapping[str, Any]
"""The colour, the marker and the line of a curve."""


def _look(colour: str, marker: str, line: Any) -> dict[str, Any]:
    return {"color": colour, "marker": marker, "ls": line}


LOOKS: Mapping[str, dict[str, Any]] = {
    "no-defense": _look(BLACK, "x", ":"),
    "gradient-pruning": _look(ORANGE, "o", "-"),
    "optimal-pruning": _look(BLUE, "s", "--"),
    "clamped-noise": _look(RED, "^", "-"),
    "optimal-clamped-noise": _look(GREEN, "D", "--"),
    "gradient-noise": _look(PURPLE, "v", "-"),
    "optimal-noise": _look(SKY, "P", "--"),
    "laplace-noise": _look("0.5", "X", "-."),
    "sign-compression": _look(BLACK, "*", ":"),
}
"""Of each defense."""

OTHERS = [
    _look(colour, marker, line)
    for colour, marker, line in zip(
        (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK, YELLOW),
        "osD^vPX*",
        ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), "-", "--"),
        strict=True,
    )
]
"""Of what is no defense, in turns."""

ATTACKER_TITLES = {
    "paper": "the paper's attack",
    "strong": "tuned attack",
    "aware": "attack that knows the defense",
}

BLANK = "blank_mse"
"""What tables call the error of an image of the mean colour."""

MSE = "reconstruction MSE (normalised units)"
PSNR = "PSNR (dB, pixels in [0, 1])"
AXES = {"pruning": "pruning ratio (% of entries)", "noise": "noise scale (root mean square)"}

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
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of rows × columns panels, written to ``stem.png`` and ``stem.pdf`` at the end."""
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        made = new_figure(width * columns, height * rows)
        made.set_layout_engine("constrained")
        axes = made.subplots(rows, columns, squeeze=False)
        yield made, [*axes.flat]
        save(made, stem)


def save(made: Figure, stem: Path) -> None:
    """PNG for screens, PDF for print."""
    for suffix in ("png", "pdf"):
        save_figure(made, stem.with_name(f"{stem.name}.{suffix}"), dpi=200)


def panels(
    stem: Path,
    rows: Mapping[Any, Sequence[Row]] | Sequence[Row],
    xlabel: str = "",
    ylabel: str = "",
    columns: int | None = None,
    width: float = 3.4,
    height: float = 2.9,
    legend: int = 4,
    then: Callable[[dict[Any, Axes]], None] | None = None,
) -> Iterator[tuple[Axes, Any, Sequence[Row]]]:
    """The axes, the key and the rows of each panel that has rows; the others say that they lack.

    Rows that are not by key are one panel's. Panels get the labels, one vertical range where they
    share its label, and a legend below all. When all are drawn, `then` may change them, by key.
    """
    rows = rows if isinstance(rows, Mapping) else {"": rows}
    rows = rows or {"": ()}
    columns = columns or len(rows)
    lines = -(-len(rows) // columns)
    with figure(stem, columns, lines, width, height) as (made, axes):
        for axis in axes[len(rows) :]:
            axis.axis("off")
        shown = {}
        for axis, (key, own) in zip(axes, rows.items(), strict=False):
            axis.set(xlabel=xlabel, ylabel=ylabel if axis in axes[::columns] else "")
            if own:
                shown[key] = axis
                yield axis, key, own
            else:
                axis.text(0.5, 0.5, "no finished cells", ha="center", transform=axis.transAxes)
        if ylabel:
            one_scale(shown.values())
        if then is not None:
            then(shown)
        legend_below(made, axes, legend)


def split(rows: Sequence[Row], *names: str) -> dict[Any, list[Row]]:
    """The rows by their entries in one column, or in several as a tuple; in their order."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        groups.setdefault(key if len(names) > 1 else key[0], []).append(row)
    return groups


def blind_guess(line: Callable[..., Any], errors: Iterable[Entry]) -> None:
    """Mark the error of an image of the mean colour by `axis.axvline` or `axis.axhline`.

    The first that is known stands for those of all defenses, which share batches.
    """
    known = [error for error in errors if error is not None]
    if known:
        line(known[0], color="0.4", ls="-.", lw=0.9, label="blind guess", zorder=0)


def mark_levels(axis: Axes, levels: Iterable[Entry], percent: bool = False) -> None:
    """Ticks at the levels themselves: percentages, or scales on a logarithmic axis."""
    known = sorted({number(level) for level in levels if level is not None})
    if not known:
        return
    if not percent and known[0] > 0:
        axis.set_xscale("log")
    axis.set_xticks(known, [f"{level * 100:g}" if percent else f"{level:g}" for level in known])
    axis.minorticks_off()
    axis.margins(x=0.1)


def one_scale(axes: Iterable[Axes]) -> None:
    """The same vertical range for all panels."""
    axes = [*axes]
    limits = [axis.get_ylim() for axis in axes]
    for axis in axes:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def legend_below(made: Figure, axes: list[Axes], columns: int) -> None:
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
        # the last letter should not touch the edge
        if count == 1 or legend.get_window_extent().width <= 0.98 * made.bbox.width:
            return
        legend.remove()


def curve(
    axis: Axes, rows: Sequence[Row], label: str, x: str = "level", aside: float = 0.0, **look: Any
) -> None:
    """Means with error bars over a column; missing intervals leave the bar out.

    `aside` is how many points to the right it is drawn, so that bars do not hide bars; the limits
    of the axes stay as they are.
    """
    rows = sorted(rows, key=lambda row: number(row[x]))
    places, means = ([number(row[name]) for row in rows] for name in (x, "mean"))
    style = {"label": label, "capsize": 2.5, "elinewidth": 0.9, **look}
    drawn = axis.errorbar(places, means, yerr=bars(rows), **style)
    shift = ScaledTranslation(aside / 72, 0, axis.get_figure().dpi_scale_trans)  # type: ignore[union-attr]
    for artist in drawn.get_children():
        artist.set_transform(axis.transData + shift)


def curves(
    axis: Axes,
    rows: Sequence[Row],
    looks: Mapping[str, tuple[str, Look]],
    by: str = "defense",
    percent: bool = False,
) -> None:
    """A curve over `level` for each entry of a column, with its label and look; ticks at levels.

    What has no level is a horizontal line with its interval as a band.
    """
    groups = split(rows, by)
    there = [name for name in looks if name in groups]
    for place, name in enumerate(there):
        (label, look), mine = looks[name], groups[name]
        if mine[0]["level"] is None:
            line = {"color": look["color"], "ls": look["ls"], "lw": 1.1, "label": label}
            axis.axhline(number(mine[0]["mean"]), **line)
            if mine[0]["low"] is not None:
                ends = number(mine[0]["low"]), number(mine[0]["high"])
                axis.axhspan(*ends, color=look["color"], alpha=0.08, lw=0)
        else:
            curve(axis, mine, label, aside=3.5 * (place - (len(there) - 1) / 2), **look)
    mark_levels(axis, [row["level"] for row in rows], percent)


def looks_of(names: Iterable[str]) -> dict[str, tuple[str, Look]]:
    """Labels and looks of defenses, for `curves`."""
    return {name: (label_of(name), LOOKS[name]) for name in names}


def bars(rows: Sequence[Row], name: str = "") -> NDArray[np.floating[Any]]:
    """Distances from the mean to the interval's ends; 0 where there is no interval."""
    names = [f"{name}_{part}" if name else part for part in ("mean", "low", "high")]
    mean, low, high = (np.array([number(row[part]) for row in rows]) for part in names)
    return np.fmax([mean - low, high - mean], 0.0)


def round_curve(axis: Axes, rows: Sequence[Row], label: str, look: Look) -> None:
    """A mean over rounds with its interval as a band."""
    rows = sorted(rows, key=lambda row: number(row["round"]))
    x, y = (np.array([number(row[name]) for row in rows]) for name in ("round", "mean"))
    low, high = bars(rows)
    axis.fill_between(x, y - low, y + high, alpha=0.18, lw=0, color=look["color"])
    axis.plot(x, y, label=label, color=look["color"], ls=look["ls"])


def dots(axis: Axes, rows: Mapping[str, Mapping[str, Row]], looks: Mapping[str, Look]) -> None:
    """A line for each name, from above; on it a mean with its interval for each of its looks."""
    for place, own in enumerate(rows.values()):
        for index, (key, row) in enumerate(own.items()):
            style = {"elinewidth": 0.9, "capsize": 2, **looks[key], "ls": "none"}
            shift = 0.28 * (index - (len(own) - 1) / 2)
            axis.errorbar([number(row["mean"])], [place + shift], xerr=bars([row]), **style)
    axis.set_yticks(range(len(rows)), [*rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)


def grouped_bars(
    axis: Axes, rows: Mapping[str, Mapping[str, Row]], looks: Mapping[str, tuple[str, Look]]
) -> None:
    """A group of bars for each name; in it one for each look, with its interval."""
    for place, (key, (label, look)) in enumerate(looks.items()):
        mine = [(group, own[key]) for group, own in enumerate(rows.values()) if key in own]
        found = [row for _, row in mine]
        axis.bar(
            [group + 0.27 * (place - (len(looks) - 1) / 2) for group, _ in mine],
            [number(row["mean"]) for row in found],
            0.25,
            yerr=bars(found) if found else None,
            color=look["color"],
            hatch=("", "//", "..")[place],
            edgecolor="white",
            ecolor="0.2",
            capsize=2,
            label=label,
        )
    axis.set_xticks(range(len(rows)), [*rows])


def draw_images(stem: Path, rows: Sequence[tuple[str, Tensor, Sequence[str]]]) -> None:
    """A labelled row for each (label, images (N, C, H, W) in [0, 1], note for each image)."""
    columns = max((len(images) for _, images, _ in rows), default=1)
    with figure(stem, columns, max(1, len(rows)), width=1.25, height=1.425) as (_, axes):
        for axis in axes:
            axis.set(xticks=[], yticks=[], frame_on=False)
        for index, (label, images, notes) in enumerate(rows):
            line = axes[index * columns : (index + 1) * columns]
            for axis, image, note in zip(line, images, notes, strict=False):
                pixels = image.permute(1, 2, 0).numpy(force=True)
                axis.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
                axis.set_xlabel(note, fontsize=6.5, labelpad=1.5)
            line[0].set_ylabel(label, fontsize=7.5)


SHORT = {LAYERS: "public, per layer"}
"""What legends call a plan."""


def frontier_panel(axis: Axes, rows: Sequence[Row], found: str, guess: bool = True) -> None:
    """Draw the levels of each defense and plan, joined in their order; crosses are the intervals.

    Rows have `defense`, `plan` ("" if it needs none), `blank_mse`, and with the endings `_mean`,
    `_low` and `_high` the `loss` and what was found, which goes to the right. Curves of private
    plans are hollow, those of layers have squares.
    """
    rows = [r for r in rows if None not in (r["loss_mean"], r[f"{found}_mean"])]
    of_plan: dict[str, dict[str, Any]] = {
        PRIVATE: {"mfc": "white", "ls": ":"},
        LAYERS: {"marker": "s"},
    }
    for (defense, plan), mine in split(rows, "defense", "plan").items():
        short = f" ({SHORT.get(plan, plan)})" if plan else ""
        look = {**LOOKS.get(defense, _look("0.4", ".", "-")), **of_plan.get(plan, {})}
        axis.errorbar(
            [number(r[f"{found}_mean"]) for r in mine],
            [number(r["loss_mean"]) for r in mine],
            xerr=bars(mine, found),
            yerr=bars(mine, "loss"),
            label=f"{label_of(defense)}{short}",
            elinewidth=0.5,
            lw=1,
            **look,
        )
    if guess:
        blind_guess(axis.axvline, [r[BLANK] for r in rows])


VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "reproduced": ("R", GREEN, "white"),
    "not reproduced": ("N", RED, "white"),
    "undecided": ("U", SKY, "black"),
    "not testable here": ("T", "0.85", "black"),
    "not tested": ("–", "white", "0.4"),
}
"""The letter of each verdict, its colour and that of the letter: readable without colours."""


def draw_summary(stem: Path, verdicts: Table, frontier: Table) -> None:
    """A grid of verdicts to the left, the frontier to the right.

    Verdicts have columns `name` (of the claim), `claim` (its text), `setting` and `verdict`; claims
    and settings are in the order in which they come first. A pair without a row stays empty, and so
    does a verdict that is none of `VERDICTS`.
    """
    height = max(4.4, 1.4 + 0.25 * len(split(verdicts.where(), "name")))
    with figure(stem, columns=2, width=5.2, height=height) as (made, axes):
        _grid(axes[0], verdicts.where())
        axes[1].set(xlabel=f"{MSE}, matched", ylabel="loss after training (nats)")
        axes[1].set_title(
            "what an attacker who knows the defense gets,\nagainst the loss after training\n"
            "(the lower right corner is best)"
        )
        frontier_panel(axes[1], frontier.where(), "aware")
        if axes[1].get_legend_handles_labels()[0]:
            small = {"ncols": 2, "fontsize": 6.5, "handlelength": 2.2, "columnspacing": 1}
            shown = axes[1].legend(loc="upper right", bbox_to_anchor=(1.02, -0.11), **small)
            shown.set_in_layout(False)  # it would make the panel narrow
            below = 1.1 / height  # inches for this legend
            made.set_layout_engine("constrained", rect=(0, below, 1, 1 - below))


def _grid(axis: Axes, rows: Sequence[Row]) -> None:
    """A letter on its colour for each claim and setting, and under them what letters mean."""
    claims = {name: str(own[0]["claim"]) for name, own in split(rows, "name").items()}
    names, settings = [*claims], [*split(rows, "setting")]
    axis.grid(False)
    axis.set(frame_on=False, xlim=(0, len(settings) or 1), ylim=(len(claims) or 1, 0))
    for row in rows:
        x, y = settings.index(row["setting"]), names.index(row["name"])
        letter, colour, ink = VERDICTS.get(str(row["verdict"]), ("", "white", "black"))
        if letter:
            axis.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white", lw=1.5))
            place: dict[str, Any] = {"ha": "center", "va": "center"}
            axis.text(x + 0.5, y + 0.5, letter, color=ink, size=7.5, weight="bold", **place)
    middles = [k + 0.5 for k in range(max(len(settings), len(claims)))]
    axis.set_xticks(middles[: len(settings)], [fill(s, 15) for s in settings], fontsize=7)
    axis.set_yticks(middles[: len(claims)], [fill(c, 66) for c in claims.values()], fontsize=6)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)
    there = {row["verdict"] for row in rows}
    handles = [
        Patch(facecolor=colour, edgecolor="0.6", lw=0.5, label=f"{letter}: {verdict}")
        for verdict, (letter, colour, _) in VERDICTS.items()
        if verdict in there
    ]
    if there - set(VERDICTS):
        handles.append(Patch(facecolor="none", label="empty: no question of that setting"))
    if handles:
        axis.legend(handles=handles, loc="upper right", bbox_to_anchor=(1.0, -0.02), ncols=2)
