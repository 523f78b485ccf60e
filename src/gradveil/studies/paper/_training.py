"""Training curves (Figures 3 and 6)."""

from dataclasses import dataclass
from pathlib import Path

import torch

from gradveil.studies.figures import COLOURS, DASHES, figure, no_cells, round_curve
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import CURVES, grouped, level_text, name_and_level, select, summary

from ._families import FIGURES, PAIRS

WINDOW = 8

Defense = tuple[str, float | None]
RUNS: dict[str, tuple[Defense, ...]] = {
    "pruning": (("gradient-pruning", 0.8), ("gradient-pruning", 0.9), ("optimal-pruning", 0.8)),
    "noise": (("dpsgd", 0.1), ("optimal-dpsgd", 0.1)),
}


@dataclass(frozen=True)
class TrainingStudy:
    """The loss of a CNN that four clients train on MNIST, smoothed over 8 rounds."""

    name: str
    family: str

    @property
    def title(self) -> str:
        """What it shows."""
        return f"MNIST: training with {PAIRS[self.family]}"

    @property
    def figure(self) -> str:
        """Where the paper has it."""
        return FIGURES[self.name]

    def cells(self, preset: str) -> list[Cell]:
        """Each defense and seed."""
        return CURVES[preset].cells(RUNS[self.family])

    def numbers(self, results: Results) -> Table:
        """The smoothed loss of each round, with intervals over seeds."""
        columns = {"defense": str, "level": float, "round": int}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        rows: list[tuple[str | float | None, ...]] = []
        cells = grouped(select(results, "training"), lambda s: name_and_level(s["defense"]))
        for defense, pairs in cells.items():
            curves = {(0, s["seed"]): smoothed(r["losses"], WINDOW) for s, r in pairs}
            for place in range(min(len(curve) for curve in curves.values())):
                units = {unit: curve[place : place + 1] for unit, curve in curves.items()}
                rows.append((*defense, place + 1, *summary(units)))
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A curve with a band for each defense."""
        with figure(path_stem, width=4.4, height=3.0) as (_, [axis]):
            rows = table.as_dicts()
            shown = dict.fromkeys((str(r["defense"]), r["level"]) for r in rows)
            for (name, level), dash in zip(shown, DASHES, strict=False):
                mine = [r for r in rows if (r["defense"], r["level"]) == (name, level)]
                label = level_text(name, None if level is None else float(level))
                round_curve(axis, mine, label, color=COLOURS[name], ls=dash)
            axis.set(xlabel="round", ylabel=f"training loss (nats, mean of the last {WINDOW})")
            if rows:
                axis.legend()
            else:
                no_cells(axis)


def smoothed(values: list[float], window: int) -> torch.Tensor:
    """The mean of the last `window` values, at each place."""
    row = torch.tensor(values, dtype=torch.float64)
    means = [row[max(0, i + 1 - window) : i + 1].mean() for i in range(len(row))]
    return torch.stack(means)
