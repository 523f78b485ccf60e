"""Theorems 2 to 4 with moments of a data set against their local forms."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradveil._drawing import BLUE, GREEN, RED
from gradveil.studies.figures import bars, figure, legend_below, no_cells
from gradveil.studies.runner import Cell, Results, Settings, Table
from gradveil.studies.shared import PLANS, grouped, is_optimal, number, select, summarise

CLIP = 0.05
"""Small enough to clamp entries of the MNIST CNN's gradient; the paper's 1 clamps none."""

THEOREMS: Mapping[str, tuple[str, str]] = {
    "Theorem 2\nnoise": ("gradient-noise(scale=0.1)", "optimal-noise(scale=0.1, plan='private')"),
    "Theorem 3\nclipping and noise": (
        f"dpsgd(scale=0.1, clip={CLIP})",
        f"optimal-dpsgd(scale=0.1, clip={CLIP}, least=0.0, plan='private')",
    ),
    "Theorem 4\npruning": (
        "gradient-pruning(ratio=0.9)",
        "optimal-pruning(ratio=0.9, plan='private')",
    ),
}
"""Theorem 3 in the paper's form, which sends clamped entries bare: to hide these, too, has a price
of its own, which is not what the shares compare."""
PLANNED = {
    "classical": (RED, "classical (isotropic, magnitude)"),
    "global": (GREEN, "global: moments of public data"),
    "local": (BLUE, "local: the batch itself (leaks by its plan)"),
}


@dataclass(frozen=True)
class PlanStudy:
    """What a plan keeps of the best protection of a batch, at equal utility on that batch."""

    name: str = "local-against-global"
    title: str = "MNIST: plans from the batch itself against plans from public data"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """The three plans of each theorem on several batches."""
        plan = PLANS[preset]
        public = {"start": 2000, "size": 16, "batches": plan.public_batches}
        common: dict[str, Any] = {
            "data": plan.grid.data,
            "model": plan.grid.model,
            "size": 16,
            "probes": plan.probes,
            "seed": 0,
        }
        return [
            Cell(
                "plan-quality",
                {**common, "trained": trained, "start": 16 * batch, "defense": d, "public": p},
            )
            for trained in plan.trained
            for batch in range(plan.batches)
            for classical, optimal in THEOREMS.values()
            for d, p in ((classical, None), (optimal, None), (optimal, public))
        ]

    def numbers(self, results: Results) -> Table:
        """Mean shares with intervals over batches."""
        cells = grouped(select(results, "plan-quality"), _key)
        rows = [(*key, *summarise(pairs, "share")) for key, pairs in cells.items()]
        columns = {"trained": int, "defense": str, "plan": str}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Bars by theorem and plan; a panel for the fresh model and one for each trained one."""
        rows = table.as_dicts()
        states = sorted({int(number(row["trained"])) for row in rows}) or [0]
        with figure(path_stem, columns=len(states), width=4.6, height=3.0) as (made, axes):
            for axis, trained in zip(axes, states, strict=True):
                mine = [row for row in rows if row["trained"] == trained]
                if not mine:
                    no_cells(axis)
                for place, (plan, (colour, label)) in enumerate(PLANNED.items()):
                    for group, pair in enumerate(THEOREMS.values()):
                        planned = [r for r in mine if r["plan"] == plan and r["defense"] in pair]
                        axis.bar(
                            [group + 0.27 * (place - 1)] * len(planned),
                            [number(row["mean"]) for row in planned],
                            0.25,
                            yerr=bars(planned) if planned else None,
                            color=colour,
                            hatch=("", "//", "..")[place],
                            edgecolor="white",
                            ecolor="0.2",
                            capsize=2,
                            label=label if group == 0 else None,
                        )
                axis.set_title("fresh model" if not trained else f"after {trained} steps")
                axis.set_xticks(range(len(THEOREMS)), [*THEOREMS])
                axis.set_ylim(0, 1.05)
            axes[0].set_ylabel("share of the best protection\nat equal utility")
            legend_below(made, axes, columns=max(2, len(axes)))


def _key(settings: Settings) -> tuple[int, str, str]:
    defense = settings["defense"]
    plan = "global" if settings["public"] else "local"
    return (
        settings.get("trained", 0),
        defense,
        plan if is_optimal(defense) else "classical",
    )
