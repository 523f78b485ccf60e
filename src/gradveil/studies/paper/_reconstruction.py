"""Reconstruction error against the level of the defense (Figures 2, 5 and 13)."""

from dataclasses import dataclass
from pathlib import Path

from gradveil.studies.figures import (
    BLANK,
    MSE,
    PSNR,
    blank_errors,
    blind_guess,
    defense_curves,
    figure,
    legend_below,
)
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import grouped, name_and_level, select, summarise

from ._families import AXES, FIGURES, GRIDS, NAMES, PAIRS, levels

METRICS = ("unmatched_mse", "unmatched_psnr", "mse", "psnr", BLANK)
"""Compared place by place, as in the paper, and after matching images; and a blind guess."""


@dataclass(frozen=True)
class ReconstructionStudy:
    """MSE and PSNR of Inverting Gradients for a pair of defenses at several levels."""

    name: str
    data: str
    family: str

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.data}: reconstruction error, {PAIRS[self.family]}"

    @property
    def figure(self) -> str:
        """Where the paper has it."""
        return FIGURES[self.name]

    def cells(self, preset: str) -> list[Cell]:
        """Each defense, level, batch and seed, and no defense."""
        grid = GRIDS[self.data][preset]
        steps = levels(grid, self.family, large=True)
        return grid.attack_cells(["no-defense", *grid.levels(NAMES[self.family], steps)])

    def numbers(self, results: Results) -> Table:
        """Means over batches, seeds and images with intervals."""
        columns = {"defense": str, "level": float, "metric": str}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        cells = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        rows = [
            (*defense, metric, *summarise(cells[defense], metric))
            for metric in METRICS
            for defense in sorted(cells, key=lambda d: (d[0], d[1] or 0.0))
        ]
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """MSE to the left, PSNR to the right."""
        labels = {"unmatched_mse": MSE, "unmatched_psnr": PSNR}
        with figure(path_stem, columns=2, height=3.1) as (made, axes):
            for axis, (metric, label) in zip(axes, labels.items(), strict=True):
                rows = [row for row in table.as_dicts() if row["metric"] == metric]
                percent = self.family == "pruning"
                defense_curves(axis, rows, label, AXES[self.family], percent)
            blanks = blank_errors(table)
            blind_guess(axes[0].axhline, blanks)
            legend_below(made, axes)
