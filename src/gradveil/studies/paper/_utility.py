"""Training utility against the noise scale on CIFAR-10 (Figure 12)."""

from dataclasses import dataclass
from pathlib import Path

from gradveil.studies.figures import SCALE, defense_curves, figure, legend_below
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import CIFAR, NOISE, grouped, name_and_level, select, summarise_loss

from ._families import FIGURES, PAIRS, levels


@dataclass(frozen=True)
class UtilityStudy:
    """The loss after 5 steps on 8 images, for small and for large scales."""

    name: str

    @property
    def title(self) -> str:
        """What it shows."""
        return f"CIFAR-10: training loss, {PAIRS['noise']}"

    @property
    def figure(self) -> str:
        """Where the paper has it."""
        return FIGURES[self.name]

    def cells(self, preset: str) -> list[Cell]:
        """Short trainings at all scales."""
        grid = CIFAR[preset]
        return grid.short_cells(grid.levels(NOISE, levels(grid, "noise", large=True)))

    def numbers(self, results: Results) -> Table:
        """The mean loss of each defense and scale with intervals over seeds."""
        cells = grouped(select(results, "short-training"), lambda s: name_and_level(s["defense"]))
        rows = [
            (*defense, *summarise_loss(cells[defense]))
            for defense in sorted(cells, key=lambda d: (d[0], d[1] or 0.0))
        ]
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({"defense": str, "level": float, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """One curve for each defense."""
        with figure(path_stem, width=4.0, height=2.8) as (made, [axis]):
            label = "loss after 5 steps on 8 samples (nats)"
            defense_curves(axis, table.as_dicts(), label, SCALE, percent=False)
            legend_below(made, [axis])
