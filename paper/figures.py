"""The look of all figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from gradveil._drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW, save_figure
from gradveil._extras import require

from .grids import LAYERS, PRIVATE
from .numbers import label_of, number
from .study import Entry, Table

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
    "clamped-noise": RED,
    "optimal-clamped-noise": GREEN,
    "gradient-noise": RED,
    "optimal-noise": GREEN,
}
MARKERS = {
    "no-defense": "x",
    "gradient-pruning": "o",
    "optimal-pruning": "s",
    "clamped-noise": "^",
    "optimal-clamped-noise": "D",
    "gradient-noise": "^",
    "optimal-noise": "D",
}
LINES = {
    "no-defense": ":",
    "gradient-pruning": "-",
    "optimal-pruning": "--",
    "clamped-noise": "-",
    "optimal-clamped-noise": "--",
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


Row = dict[str, Entry]


def level_curve(
    axis: "Axes", rows: Sequence[Row], label: str, aside: float = 0.0, **style: Any
) -> None:
    """Means with error bars over `level`; missing intervals leave the bar out.

    `aside` is how many points to the right it is drawn (`apart`).
    """
    rows = sorted(rows, key=lambda row: number(row["level"]))
    x = [number(row["level"]) for row in rows]
    y = [number(row["mean"]) for row in rows]
    drawn = axis.errorbar(x, y, yerr=bars(rows), label=label, capsize=2.5, elinewidth=0.9, **style)
    move_aside(axis, drawn, aside)


def bars(rows: Sequence[Row], name: str = "") -> list[list[float]]:
    """Distances from the mean to the interval's ends; 0 where there is no interval."""
    mean, low, high = (f"{name}_{k}" if name else k for k in ("mean", "low", "high"))
    return [
        [max(0.0, _distance(row[mean], row[low])) for row in rows],
        [max(0.0, _distance(row[high], row[mean])) for row in rows],
    ]


def _distance(upper: Entry, lower: Entry) -> float:
    return 0.0 if upper is None or lower is None else number(upper) - number(lower)


def defense_curves(
    axis: "Axes", rows: Sequence[Row], ylabel: str, xlabel: str, percent: bool
) -> None:
    """One curve for each defense; a defense without a level is a horizontal line."""
    if not rows:
        no_cells(axis)
    levels = sorted({number(row["level"]) for row in rows if row["level"] is not None})
    names = list(dict.fromkeys(str(row["defense"]) for row in rows))
    for place, name in enumerate(names):
        mine = [row for row in rows if row["defense"] == name]
        colour, label = COLOURS.get(name, OTHERS[0]), label_of(name)
        if mine[0]["level"] is None:
            axis.axhline(number(mine[0]["mean"]), color=colour, ls=":", lw=1.1, label=label)
            if mine[0]["low"] is not None:
                low, high = number(mine[0]["low"]), number(mine[0]["high"])
                axis.axhspan(low, high, color=colour, alpha=0.08, lw=0)
        else:
            style = {"color": colour, "marker": MARKERS.get(name, "o"), "ls": LINES.get(name, "-")}
            level_curve(axis, mine, label, aside=apart(place, len(names)), **style)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    if levels:
        mark_levels(axis, levels, percent)


def round_curve(axis: "Axes", rows: Sequence[Row], label: str, **style: Any) -> None:
    """A mean over rounds with its interval as a band."""
    rows = sorted(rows, key=lambda row: number(row["round"]))
    x = [number(row["round"]) for row in rows]
    low = [number(row["mean"] if row["low"] is None else row["low"]) for row in rows]
    high = [number(row["mean"] if row["high"] is None else row["high"]) for row in rows]
    axis.fill_between(x, low, high, alpha=0.18, lw=0, color=style.get("color"))
    axis.plot(x, [number(row["mean"]) for row in rows], label=label, **style)


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

SIZE = 6.5
"""Of the letters, in points."""
WIDE, HIGH = 0.82, 1.4
"""Of a letter and of a line, over the size: enough for digits, points and percent signs."""


class Note(NamedTuple):
    """A point, and what is written beside it."""

    x: float
    y: float
    text: str
    colour: str


def label_points(axis: "Axes", notes: Sequence[Note], reach: float = 6.0) -> None:
    """Write beside each point, at the first place that no point and no label before it has.

    The places are around the point, near ones first, and within the axes, so that no label covers
    the ticks'. Call it when all else is drawn, because the limits of the axes have to be final;
    the layout may still change their size a little. A label that has no free place is left out: the
    points' sizes, or their order on the curve, tell the rest.
    """
    figure = axis.get_figure()
    assert figure is not None
    inches = axis.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    wide, high = 72 * inches.width, 72 * inches.height
    to_axes = axis.transData + axis.transAxes.inverted()
    places = [(wide * a, high * b) for a, b in to_axes.transform([(n.x, n.y) for n in notes])]
    taken = [(x - reach / 2, y - reach / 2, x + reach / 2, y + reach / 2) for x, y in places]
    for note, (x, y) in zip(notes, places, strict=True):
        size = WIDE * SIZE * len(note.text), HIGH * SIZE
        for dx, dy in _places(size, reach):
            box = (x + dx, y + dy, x + dx + size[0], y + dy + size[1])
            within = min(box[:2]) >= 0 and box[2] <= wide and box[3] <= high
            if within and not any(overlap(box, other) for other in taken):
                taken.append(box)
                axis.annotate(
                    note.text,
                    (note.x, note.y),
                    xytext=(dx, dy),
                    textcoords="offset points",
                    fontsize=SIZE,
                    color=note.colour,
                    va="bottom",
                    bbox={"facecolor": "white", "alpha": 0.75, "pad": 0.2, "linewidth": 0},
                )
                break


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes have a point in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _places(size: tuple[float, float], reach: float) -> list[tuple[float, float]]:
    """Lower left corners of a label around its point: right and left, above and below."""
    wide, high = size
    near = [(reach * k, y) for k in (1, 2) for y in (reach * k / 2, -high - reach * k / 2)]
    return [each for x, y in near for each in ((x, y), (-wide - x, y))]


def draw_images(
    stem: Path, rows: Sequence[tuple[str, Tensor, Sequence[str]]], width: float = 1.0
) -> None:
    """A labelled row for each (label, images (N, C, H, W) in [0, 1], note for each image)."""
    columns = max((len(images) for _, images, _ in rows), default=1)
    with figure(stem, columns, max(1, len(rows)), width, width * 1.14) as (_, axes):
        if not rows:
            no_cells(axes[0])
        for axis in axes:
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(False)
            for side in axis.spines.values():
                side.set_visible(False)
        for index, (label, images, notes) in enumerate(rows):
            line = axes[index * columns : (index + 1) * columns]
            for axis, image, note in zip(line, images, notes, strict=False):
                grey = image.shape[0] == 1
                axis.imshow(
                    (image[0] if grey else image.permute(1, 2, 0)).numpy(force=True),
                    cmap="gray" if grey else None,
                    vmin=0,
                    vmax=1,
                    interpolation="nearest",
                )
                axis.set_xlabel(note, fontsize=6.5, labelpad=1.5)
            line[0].set_ylabel(label, fontsize=7.5)


LOOKS: Mapping[str, Mapping[str, Any]] = {
    "gradient-noise": {"color": PURPLE, "marker": "v", "ls": "-"},
    "optimal-noise": {"color": SKY, "marker": "P", "ls": "--"},
    "laplace-noise": {"color": "0.5", "marker": "X", "ls": "-."},
    "sign-compression": {"color": BLACK, "marker": "*", "ls": ":"},
}
"""Of defenses whose usual look is that of another one in the same panel, or that have none."""


def frontier_panel(axis: "Axes", rows: Sequence[Row], found: str, guess: bool = True) -> None:
    """Draw the levels of each defense and plan, joined in their order; crosses are the intervals.

    Args:
        axis: Where.
        rows: `defense`, `plan` ("" if it needs none), `blank_mse`, and with the endings `_mean`,
            `_low` and `_high` the `loss` and what was found. Those without a mean are left out.
        found: The name of what is found, which goes to the right.
        guess: Whether to mark the error of a blind guess.
    """
    rows = [r for r in rows if None not in (r["loss_mean"], r[f"{found}_mean"])]
    if not rows:
        no_cells(axis)
    for key in dict.fromkeys((str(r["defense"]), str(r["plan"])) for r in rows):
        mine = [r for r in rows if (r["defense"], r["plan"]) == key]
        axis.errorbar(
            [number(r[f"{found}_mean"]) for r in mine],
            [number(r["loss_mean"]) for r in mine],
            xerr=bars(mine, found),
            yerr=bars(mine, "loss"),
            label=curve_label(*key),
            elinewidth=0.5,
            lw=1,
            **curve_look(*key),
        )
    if guess:
        blind_guess(axis.axvline, [r[BLANK] for r in rows])


def curve_label(defense: str, plan: str) -> str:
    """How a legend calls a defense with its plan.

    >>> curve_label("optimal-pruning", LAYERS)
    'optimal pruning (public, per layer)'
    """
    plan = plan.replace("one level per layer", "per layer")
    return f"{label_of(defense)} ({plan})" if plan else label_of(defense)


def curve_look(defense: str, plan: str) -> dict[str, Any]:
    """The colour, marker and line of a curve; private plans are hollow, layers have squares."""
    usual = {
        "color": COLOURS.get(defense, "0.4"),
        "marker": MARKERS.get(defense, "."),
        "ls": LINES.get(defense, "-"),
    }
    of_plan = {PRIVATE: {"mfc": "white", "ls": ":"}, LAYERS: {"marker": "s"}}.get(plan, {})
    return {**usual, **LOOKS.get(defense, {}), **of_plan}


VERDICTS: Mapping[str, tuple[str, str, str]] = {
    "reproduced": ("R", GREEN, "white"),
    "not reproduced": ("N", RED, "white"),
    "undecided": ("U", SKY, "black"),
    "not testable here": ("T", "0.85", "black"),
    "not tested": ("–", "white", "0.4"),
}
"""The letter of each verdict, its colour and that of the letter: readable without colours."""

CLAIM, HEADING = 66, 15
"""Letters in a line of a claim, and of a setting's heading."""
ROW, HEAD, LEAST = 0.25, 1.4, 4.4
"""Inches: of a claim, of all that is above and below the claims, and of the whole figure."""


SMALL: Mapping[str, Any] = {"ncols": 2, "fontsize": 6.5, "handlelength": 2.2, "columnspacing": 1}
BELOW = 1.1
"""Inches for the frontier's legend."""

DATA = {"mnist": "MNIST", "cifar": "CIFAR-10"}
"""By the first part of a claim's name."""


def verdict_table(rows: Iterable[tuple[str, str, str, str]]) -> Table:
    """The table that `draw_summary` takes, from each claim's name, text, setting and verdict.

    Some claims have one text for two data sets, so the data set comes first.

    >>> table = verdict_table([("mnist-noise", "... and trains better.", "paper", "undecided")])
    >>> table.rows
    [('mnist-noise', 'MNIST: … and trains better', 'paper', 'undecided')]
    """
    named = [
        (name, _claim_text(name, text), setting, verdict) for name, text, setting, verdict in rows
    ]
    return Table(("name", "claim", "setting", "verdict"), named)


def draw_summary(stem: Path, verdicts: Table, frontier: Table, attacker: str = "aware") -> None:
    """A grid of verdicts to the left, the frontier to the right.

    Args:
        stem: Where ``.png`` and ``.pdf`` go.
        verdicts: Columns `name` (of the claim), `claim` (its text), `setting` and `verdict`, see
            `verdict_table`; claims and settings in the order in which they come first. A pair
            without a row stays empty, and so does a verdict that is none of `VERDICTS`: that the
            claim has no such setting, for example.
        frontier: A row for each defense, plan and level: `defense`, `plan` ("" if it needs none),
            and with the endings `_mean`, `_low` and `_high` the `loss` after training and the
            error of the `attacker`; `blank_mse` is the blind guess's. Rows of one defense and plan
            are joined in their order.
        attacker: The column of errors.
    """
    claims = {str(row["name"]): str(row["claim"]) for row in verdicts.as_dicts()}
    height = max(LEAST, HEAD + ROW * len(claims))
    with figure(stem, columns=2, width=5.2, height=height) as (made, axes):
        _grid(axes[0], verdicts, claims)
        _frontier(axes[1], frontier.as_dicts(), attacker)
        _legend(made, axes[0], verdicts)
        if axes[1].get_legend_handles_labels()[0]:
            shown = axes[1].legend(loc="upper right", bbox_to_anchor=(1.02, -0.11), **SMALL)
            shown.set_in_layout(False)  # it would make the panel narrow
            below = BELOW / height
            made.set_layout_engine("constrained", rect=(0, below, 1, 1 - below))


def _claim_text(name: str, text: str) -> str:
    data = DATA.get(name.partition("-")[0])
    text = text.replace("...", "…").removesuffix(".").removesuffix(" …")
    return f"{data}: {text}" if data else text


def _grid(axis: "Axes", verdicts: Table, claims: Mapping[str, str]) -> None:
    from matplotlib.patches import Rectangle

    settings = list(dict.fromkeys(str(s) for s in verdicts.column("setting")))
    names = [*claims]
    axis.grid(False)
    for side in axis.spines.values():
        side.set_visible(False)
    if not claims:
        no_cells(axis)
        return
    for row in verdicts.as_dicts():
        place = settings.index(str(row["setting"])), names.index(str(row["name"]))
        letter, colour, ink = VERDICTS.get(str(row["verdict"]), ("", "white", "black"))
        if letter:
            axis.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white", lw=1.5))
            axis.text(
                place[0] + 0.5,
                place[1] + 0.5,
                letter,
                ha="center",
                va="center",
                color=ink,
                fontsize=7.5,
                fontweight="bold",
            )
    axis.set_xlim(0, len(settings))
    axis.set_ylim(len(claims), 0)
    middles = [k + 0.5 for k in range(max(len(settings), len(claims)))]
    axis.set_xticks(middles[: len(settings)], [fill(s, HEADING) for s in settings], fontsize=7)
    axis.set_yticks(middles[: len(claims)], [fill(c, CLAIM) for c in claims.values()], fontsize=6)
    axis.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False)


def _frontier(axis: "Axes", rows: list[Row], attacker: str) -> None:
    axis.set(xlabel=f"{MSE}, matched", ylabel="loss after training (nats)")
    axis.set_title("what an attacker who knows the defense gets,\nagainst the loss after training")
    frontier_panel(axis, rows, attacker)
    if axis.containers:
        axis.annotate(
            "better",
            (0.97, 0.03),
            (0.8, 0.12),
            xycoords="axes fraction",
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "->", "color": "0.4"},
            color="0.4",
            fontsize=7,
        )


def _legend(made: "Figure", axis: "Axes", verdicts: Table) -> None:
    """What the letters mean, under the grid; those that are there."""
    from matplotlib.patches import Patch

    there = set(verdicts.column("verdict"))
    handles = [
        Patch(facecolor=colour, edgecolor="0.6", lw=0.5, label=f"{letter}: {verdict}")
        for verdict, (letter, colour, _) in VERDICTS.items()
        if verdict in there
    ]
    if there - set(VERDICTS):
        handles.append(Patch(facecolor="none", label="empty: no question of that setting"))
    if handles:
        axis.legend(handles=handles, loc="upper right", bbox_to_anchor=(1.0, -0.02), ncols=2)
