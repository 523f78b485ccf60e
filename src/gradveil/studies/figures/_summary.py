"""One figure for all: what became of the claims, and leakage against loss after training."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from gradveil._drawing import GREEN, RED, SKY
from gradveil.studies.runner import Table

from ._curves import Row
from ._frontier import frontier_panel
from ._panels import MSE, figure, no_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    return Table({"name": str, "claim": str, "setting": str, "verdict": str}, named)


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
