"""Plans from public examples, by how many there are and of which kind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradveil.studies.figures import (
    DASHES,
    OTHERS,
    SHAPES,
    bars,
    figure,
    legend_below,
    mark_levels,
    no_cells,
    one_scale,
)
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import PUBLIC_PLANS, Unit, number, select, summary

LABELS = {
    "limit": "limit: the population's moments",
    "private": "the private batch itself (reveals it)",
    "entry-wise": "public, each entry (Theorem 2)",
    "rows x columns": "public, rows × columns",
    "layer": "public, one level per layer",
    "shrunk": "public, shrunk",
    "model": "model alone",
    "released": "released updates",
}
LINES = ("entry-wise", "rows x columns", "layer", "shrunk")


@dataclass(frozen=True)
class PublicPlanStudy:
    """The gain over isotropic noise at equal U2 of plans that reveal nothing, and of others."""

    name: str = "public-plans"
    title: str = "MNIST: gain of plans from public examples over isotropic noise"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """One cell for each private batch, with all plans in it."""
        plan = PUBLIC_PLANS[preset]
        common: dict[str, Any] = {
            "data": plan.data,
            "model": plan.model,
            "size": 16,
            "public": plan.public,
            "counts": list(plan.counts),
            "population": plan.population,
            "strange": plan.strange,
            "probes": plan.probes,
            "seed": 0,
        }
        return [
            Cell("public-plans", {**common, "trained": trained, "start": 16 * batch})
            for trained in plan.trained
            for batch in range(plan.batches)
        ]

    def numbers(self, results: Results) -> Table:
        """Mean gains with intervals over private batches."""
        groups: dict[tuple[int, str, int], dict[Unit, Tensor]] = {}
        for settings, result in select(results, "public-plans"):
            for name, gain in result["gains"].items():
                plan, _, count = name.rpartition("/")
                key = (settings["trained"], plan, int(count))
                unit = (settings["start"], settings["seed"])
                groups.setdefault(key, {})[unit] = torch.tensor([gain], dtype=torch.float64)
        rows = [(*key, *summary(units)) for key, units in sorted(groups.items())]
        columns = {"trained": int, "plan": str, "public batches": int}
        return Table({**columns, "mean": float, "low": float, "high": float, "n": int}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Gain against the number of public batches; a panel for each state of the model."""
        rows = table.as_dicts()
        states = sorted({int(number(row["trained"])) for row in rows}) or [0]
        with figure(path_stem, columns=len(states), width=3.6, height=3.0) as (made, axes):
            for axis, trained in zip(axes, states, strict=True):
                mine = [row for row in rows if row["trained"] == trained]
                if not mine:
                    no_cells(axis)
                _draw_panel(axis, mine)
                axis.set_title("fresh model" if not trained else f"after {trained} steps")
                axis.set_xlabel("public batches")
            axes[0].set_ylabel("gain over isotropic noise\nat equal utility")
            one_scale(axes)
            legend_below(made, axes, columns=3)


def _draw_panel(axis: Any, rows: list[dict[str, Any]]) -> None:
    axis.axhline(1.0, color="0.6", lw=1)
    for place, (plan, label) in enumerate(LABELS.items()):
        mine = [row for row in rows if row["plan"] == plan]
        colour = OTHERS[place % len(OTHERS)]
        if plan in LINES:
            axis.errorbar(
                [number(row["public batches"]) for row in mine],
                [number(row["mean"]) for row in mine],
                yerr=bars(mine) if mine else None,
                color=colour,
                marker=SHAPES[place % len(SHAPES)],
                ls=DASHES[place % len(DASHES)],
                capsize=2,
                label=label,
            )
        for row in mine if plan not in LINES else ():
            axis.axhline(number(row["mean"]), color=colour, ls=DASHES[place], label=label)
    counts = sorted({number(row["public batches"]) for row in rows if row["plan"] in LINES})
    if counts:
        mark_levels(axis, counts, percent=False)
