"""What an attacker finds against the loss after training: a curve for each defense and plan."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradveil._drawing import BLACK, PURPLE, SKY
from gradveil.studies.shared import LAYERS, PRIVATE, label_of, number

from ._curves import Row, bars
from ._panels import BLANK, COLOURS, LINES, MARKERS, blind_guess, no_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
