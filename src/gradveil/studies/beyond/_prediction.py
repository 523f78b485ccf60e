"""Which utility tells how well a model trains under noise."""

from dataclasses import dataclass
from math import inf
from pathlib import Path

import torch

from gradveil.studies.figures import OTHERS, bars, figure, legend_below, no_cells
from gradveil.studies.runner import Cell, Result, Results, Settings, Table
from gradveil.studies.shared import (
    CHANCE,
    PREDICTION,
    Pair,
    Runs,
    grouped,
    mean_correlation,
    number,
    select,
)

COSTS = ("U2", "total power", "curvature", "Adam's step")
COMPARED = {
    "all": "all amounts of noise",
    "equal bound": "at equal trace bound",
    "learned": "the same, runs that learned nothing left out",
}


@dataclass(frozen=True)
class PredictionStudy:
    """Spearman's correlation of utilities before training with the loss after it.

    Runs differ in the shape and the amount of their noise. More noise is worse by every utility;
    what a choice between defenses needs is the order of shapes at one trace bound.
    """

    name: str = "utility-predicts-training"
    title: str = "MNIST: which utility ranks defenses as the loss after training does"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """Every shape, amount, optimizer and seed."""
        return PREDICTION[preset].cells()

    def numbers(self, results: Results) -> Table:
        """Mean correlations over groups of runs, with intervals."""
        rows = []
        by_optimizer = grouped(select(results, "training-prediction"), _optimizer)
        for optimizer, pairs in by_optimizer.items():
            for place, steps in enumerate(pairs[0][0]["steps"]):
                learned = [pair for pair in pairs if _loss(pair[1], place) < CHANCE]
                for compared in COMPARED:
                    mine = learned if compared == "learned" else pairs
                    groups = grouped(mine, _seed if compared == "all" else _key).values()
                    for cost in COSTS:
                        runs = [_runs(group, cost, place) for group in groups if len(group) > 2]
                        found = mean_correlation(runs)
                        rows.append((optimizer, steps, compared, cost, *found, len(mine)))
        columns = {"optimizer": str, "steps": int, "compared": str, "utility": str}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each optimizer: bars by utility, over all runs and over comparable ones."""
        rows = table.as_dicts()
        optimizers = list(dict.fromkeys(str(row["optimizer"]) for row in rows)) or [""]
        with figure(path_stem, columns=len(optimizers), width=3.0) as (made, axes):
            for axis, optimizer in zip(axes, optimizers, strict=True):
                mine = [row for row in rows if row["optimizer"] == optimizer]
                if not mine:
                    no_cells(axis)
                last = max((number(row["steps"]) for row in mine), default=0)
                for place, compared in enumerate(COMPARED):
                    shown = [r for r in mine if r["steps"] == last and r["compared"] == compared]
                    axis.bar(
                        [k + 0.28 * (place - 1) for k in range(len(shown))],
                        [number(row["mean"]) for row in shown],
                        0.26,
                        yerr=bars(shown) if shown else None,
                        color=OTHERS[place],
                        hatch=("", "//", "..")[place],
                        edgecolor="white",
                        ecolor="0.2",
                        capsize=2,
                        label=COMPARED[compared],
                    )
                axis.set_title(f"{optimizer}, after {last:g} steps" if mine else "")
                axis.set_xticks(range(len(COSTS)), [cost.replace(" ", "\n") for cost in COSTS])
                axis.set_ylim(-1, 1.05)
            axes[0].set_ylabel("rank correlation with the loss")
            legend_below(made, axes)


def _optimizer(settings: Settings) -> str:
    return str(settings["optimizer"])


def _key(settings: Settings) -> tuple[int, float]:
    """Only runs of one model, and of one trace bound, are compared."""
    return settings["seed"], settings["scale"]


def _seed(settings: Settings) -> tuple[int, float]:
    """Only runs of one model are compared."""
    return settings["seed"], 0.0


def _runs(pairs: list[Pair], cost: str, place: int) -> Runs:
    costs = torch.tensor([result["costs"][cost] for _, result in pairs])
    losses = torch.tensor([_loss(result, place) for _, result in pairs])
    return Runs(costs, losses, [str(settings["shape"]) for settings, _ in pairs])


def _loss(result: Result, place: int) -> float:
    """Infinite where training diverged: worse than all others."""
    loss = result["losses"][place]
    return inf if loss is None or loss != loss else float(loss)
