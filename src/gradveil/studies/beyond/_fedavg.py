"""The defenses on FedAvg's updates: what an attacker gets, and how training goes."""

from dataclasses import dataclass
from pathlib import Path

from gradveil.studies.figures import (
    BLANK,
    COLOURS,
    MSE,
    bars,
    blank_errors,
    blind_guess,
    figure,
    legend_below,
    no_cells,
)
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import (
    FEDAVG,
    FedAvgGrid,
    defense_spec,
    grouped,
    is_optimal,
    is_pruning,
    label_of,
    name_and_level,
    number,
    select,
    summarise,
)

RATIO, NOISE = 0.9, 0.02
"""Of the entries; of the noise in units of lr · steps, the size of an update over a gradient."""

NAMES = ("gradient-pruning", "optimal-pruning", "gradient-noise", "optimal-noise")


def defenses(grid: FedAvgGrid) -> list[str]:
    """No defense, and each kind at one level."""
    scale = round(NOISE * grid.local["lr"] * grid.local["steps"], 12)
    levels = {name: RATIO if is_pruning(name) else scale for name in NAMES}
    return ["no-defense", *(defense_spec(name, level) for name, level in levels.items())]


@dataclass(frozen=True)
class FedAvgStudy:
    """Attacks on weight changes after local steps, and FedAvg training with the same defenses."""

    name: str = "fedavg"
    title: str = "MNIST: the defenses on FedAvg updates"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """Each defense on each batch, and in training with each seed."""
        grid = FEDAVG[preset]
        specs = defenses(grid)
        return [*grid.grid.attack_cells(specs, local=dict(grid.local)), *_trainings(grid, specs)]

    def numbers(self, results: Results) -> Table:
        """The attack's error and the loss at the end, with intervals."""
        attacks = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        runs = grouped(select(results, "training"), lambda s: name_and_level(s["defense"]))
        summaries = [(key, "mse", summarise(pairs, "mse")) for key, pairs in attacks.items()]
        summaries += [(key, BLANK, summarise(pairs, BLANK)) for key, pairs in attacks.items()]
        summaries += [
            (key, "loss", summarise(pairs, "held_out_loss")) for key, pairs in runs.items()
        ]
        columns = {"defense": str, "level": float, "metric": str}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({**columns, **numbers}, [(*key, name, *s) for key, name, s in summaries])

    def draw(self, table: Table, path_stem: Path) -> None:
        """Errors to the left, losses to the right."""
        labels = {
            "mse": MSE.replace(" (", "\n(matched, "),
            "loss": "held-out loss after training (nats)",
        }
        names = ["no-defense", *NAMES]
        with figure(path_stem, columns=2, height=2.8) as (made, axes):
            for axis, (metric, label) in zip(axes, labels.items(), strict=True):
                rows = [row for row in table.as_dicts() if row["metric"] == metric]
                if not rows:
                    no_cells(axis)
                for row in rows:
                    name = str(row["defense"])
                    axis.errorbar(
                        [number(row["mean"])],
                        [-names.index(name)],
                        xerr=bars([row]),
                        color=COLOURS[name],
                        marker="o" if is_optimal(name) else "s",
                        capsize=2.5,
                        markersize=6,
                    )
                axis.set_yticks([-i for i in range(len(names))], [label_of(n) for n in names])
                axis.set_ylim(-len(names) + 0.5, 0.5)
                axis.set_xlabel(label)
            blanks = blank_errors(table)
            blind_guess(axes[0].axvline, blanks)
            if blanks:
                legend_below(made, axes)


def _trainings(grid: FedAvgGrid, specs: list[str]) -> list[Cell]:
    common = {
        "data": grid.grid.data,
        "model": grid.grid.model,
        "start": 0,
        "examples": 1024,
        "clients": 4,
        "batch_size": 8,
        "rounds": grid.rounds,
        "optimizer": "sgd",
        "lr": 1.0,
        "local_steps": grid.local["steps"],
        "local_lr": grid.local["lr"],
        "local_batch_size": grid.local["batch_size"],
        "held_out": 512,
        "held_out_start": 4352,
    }
    return [
        Cell("training", {**common, "defense": spec, "seed": seed})
        for seed in grid.seeds
        for spec in specs
    ]
