"""Training loss against reconstruction error (Figures 4, 7, 9 and 11)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradveil.studies.figures import (
    BLANK,
    COLOURS,
    LINES,
    MARKERS,
    MSE,
    Note,
    Row,
    bars,
    blind_guess,
    figure,
    label_points,
    legend_below,
    no_cells,
)
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import (
    grouped,
    label_of,
    name_and_level,
    number,
    select,
    summarise,
    summarise_loss,
)

from ._families import FIGURES, GRIDS, NAMES, PAIRS, levels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLES = {"MNIST": 64, "CIFAR-10": 8}


@dataclass(frozen=True)
class TradeoffStudy:
    """The loss after 5 steps on one batch against the attack's MSE, one point for each level."""

    name: str
    data: str
    family: str

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.data}: privacy against utility, {PAIRS[self.family]}"

    @property
    def figure(self) -> str:
        """Where the paper has it."""
        return FIGURES[self.name]

    def cells(self, preset: str) -> list[Cell]:
        """The attacks of the reconstruction study, and short trainings with the same defenses."""
        grid = GRIDS[self.data][preset]
        specs = grid.levels(NAMES[self.family], levels(grid, self.family))
        return [*grid.attack_cells(specs), *grid.short_cells(specs)]

    def numbers(self, results: Results) -> Table:
        """Both means of each defense and level with intervals."""
        attacks = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        losses = grouped(select(results, "short-training"), lambda s: name_and_level(s["defense"]))
        rows = [
            (
                *defense,
                *summarise(attacks[defense], "unmatched_mse"),
                *summarise(attacks[defense], "mse"),
                *summarise_loss(losses[defense]),
                summarise(attacks[defense], BLANK)[0],
            )
            for defense in sorted(attacks, key=lambda d: (d[0], d[1] or 0.0))
            if defense in losses
        ]
        columns: dict[str, type] = {"defense": str, "level": float}
        for name in ("error", "matched", "loss"):
            for part in ("mean", "low", "high"):
                columns[f"{name}_{part}"] = float
            columns[f"{name}_n"] = int
        columns[BLANK] = float
        return Table(columns, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Error to the right, loss upwards: the lower right corner is best."""
        with figure(path_stem, width=4.4, height=3.4) as (made, [axis]):
            rows = table.as_dicts()
            if not rows:
                no_cells(axis)
            for name in dict.fromkeys(str(row["defense"]) for row in rows):
                self._points(axis, [row for row in rows if row["defense"] == name], name)
            blind_guess(axis.axvline, [row[BLANK] for row in rows])
            samples = SAMPLES[self.data]
            axis.set(xlabel=MSE, ylabel=f"loss after 5 steps on {samples} samples (nats)")
            if rows:
                label_points(axis, [self._note(row) for row in rows])
                legend_below(made, [axis], columns=3)

    def _points(self, axis: "Axes", rows: list[Row], name: str) -> None:
        x, y = ([number(row[f"{part}_mean"]) for row in rows] for part in ("error", "loss"))
        axis.errorbar(
            x,
            y,
            xerr=bars(rows, "error"),
            yerr=bars(rows, "loss"),
            fmt="none",
            ecolor=COLOURS[name],
            elinewidth=0.7,
            alpha=0.6,
        )
        axis.plot(x, y, color=COLOURS[name], ls=LINES[name], lw=0.8, alpha=0.7)
        sizes = [18.0 + 70.0 * place / max(1, len(rows) - 1) for place in range(len(rows))]
        axis.scatter(
            x,
            y,
            s=sizes,
            color=COLOURS[name],
            marker=MARKERS[name],
            label=label_of(name),
            edgecolors="white",
            linewidths=0.5,
            zorder=3,
        )

    def _note(self, row: Row) -> Note:
        level = number(row["level"])
        text = f"{level * 100:g}%" if self.family == "pruning" else f"{level:g}"
        place = number(row["error_mean"]), number(row["loss_mean"])
        return Note(*place, text, COLOURS[str(row["defense"])])
