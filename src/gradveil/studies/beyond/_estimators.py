"""Share of the optimum against cost, for every way to measure sensitivities."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradveil.studies.figures import OTHERS, SHAPES, bars, figure, no_cells
from gradveil.studies.runner import Cell, Results, Settings, Table
from gradveil.studies.shared import PLANS, grouped, number, select, summarise

ESTIMATORS = {
    "isotropic": "isotropic noise",
    "layers": "one level per layer",
    "gradveil.bench._paper:PaperAlgorithm(probes=10)": "paper's algorithm, 10 probes",
    "sketch(probes=1)": "sketch, 1 probe",
    "per-example(probes=1)": "per example, 1 probe",
    "per-example(probes=4)": "per example, 4 probes",
    "auto": "auto",
}


@dataclass(frozen=True)
class EstimatorStudy:
    """What each estimate reaches of the optimal bound at equal utility, and what it costs."""

    name: str = "estimator-share"
    title: str = "MNIST: share of the optimal bound against cost"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """Shares on several batches, and one timing for each estimator."""
        plan = PLANS[preset]
        cells = []
        for trained in plan.trained:
            common = {"data": plan.grid.data, "model": plan.grid.model, "trained": trained}
            for name in ESTIMATORS:
                here: dict[str, Any] = {**common, "size": 16, "estimator": name}
                share = {**here, "reference_probes": plan.probes, "seed": 0}
                cells += [
                    Cell("estimator-share", {**share, "start": 16 * batch})
                    for batch in range(plan.batches)
                ]
                cells.append(Cell("estimator-cost", {**here, "start": 0, "repeats": plan.repeats}))
        return cells

    def numbers(self, results: Results) -> Table:
        """Mean shares over batches with intervals, and the cost in plain gradients."""
        costs = {_key(s): float(r["ratio"]) for s, r in select(results, "estimator-cost")}
        shares = grouped(select(results, "estimator-share"), _key)
        rows = [
            (*key, ESTIMATORS.get(key[1], key[1]), *summarise(pairs, "share"), costs.get(key))
            for key, pairs in shares.items()
        ]
        columns = {"trained": int, "estimator": str, "label": str}
        numbers = {"mean": float, "low": float, "high": float, "n": int, "cost": float}
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for the fresh model and one for each trained one."""
        rows = table.as_dicts()
        states = sorted({int(number(row["trained"])) for row in rows}) or [0]
        with figure(path_stem, columns=len(states), width=4.6, height=3.0) as (_, axes):
            for axis, trained in zip(axes, states, strict=True):
                if axis is not axes[0]:
                    axis.sharex(axes[0])
                mine = [row for row in rows if row["trained"] == trained]
                if not mine:
                    no_cells(axis)
                for place, row in enumerate(mine):
                    axis.errorbar(
                        [number(row["cost"])],
                        [number(row["mean"])],
                        yerr=bars([row]),
                        color=OTHERS[place % 8],
                        marker=SHAPES[place % 8],
                        ls="none",
                        capsize=2.5,
                        markersize=6,
                        label=str(row["label"]),
                    )
                axis.set_title("fresh model" if not trained else f"after {trained} steps")
                axis.set(xlabel="time of a defended gradient / plain gradient", ylim=(0, 1.04))
                axis.set_xscale("log")
                axis.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
                axis.minorticks_off()
            axes[0].set_ylabel("share of the optimal bound")
            if rows:
                axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


def _key(settings: Settings) -> tuple[int, str]:
    return (settings.get("trained", 0), settings["estimator"])
