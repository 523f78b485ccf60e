"""The paper's comparisons against an attacker who knows the defense, with matched images."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradveil.studies.figures import (
    BLANK,
    COLOURS,
    LINES,
    MARKERS,
    MSE,
    apart,
    blank_errors,
    blind_guess,
    figure,
    legend_below,
    level_curve,
    mark_levels,
    no_cells,
    one_scale,
)
from gradveil.studies.paper import AXES, NAMES, PAIRS, levels
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import (
    ATTACKERS,
    AWARE,
    CIFAR,
    CIFAR_AWARE,
    Grid,
    attacker_of,
    attackers,
    grouped,
    label_of,
    name_and_level,
    number,
    select,
    summarise,
)

UNDEFENDED = "no-defense"
METRICS = ("mse", "psnr", "ssim", "unmatched_mse", BLANK)
HEADROOM = 1.4
"""Errors are shown at least up to so many times that of a blind guess: pruning and noise have one
range where no error is above it, as on photos."""


@dataclass(frozen=True)
class AdaptiveStudy:
    """Three attackers on the same batches: the paper's, a tuned one, one that knows the defense."""

    name: str
    family: str
    data: str = "MNIST"
    figure: str = "beyond the paper"

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.data}: {PAIRS[self.family]} against an attacker who knows the defense"

    def cells(self, preset: str) -> list[Cell]:
        """Each attacker on each defense, level, batch and seed, and without a defense.

        All attackers on one batch come before the next batch. Photos may be attacked on another
        model than in the paper's trade-offs, so short trainings of it, at the levels of these, are
        there for claims at equal loss.
        """
        if self.data == "MNIST":
            return self._attacks(AWARE[preset], attackers(preset))
        grid, chosen = CIFAR_AWARE[preset]
        traded = levels(CIFAR[preset], self.family)
        short = grid.short_cells(grid.levels(NAMES[self.family], traded))
        return [*self._attacks(grid, chosen), *short]

    def _attacks(self, grid: Grid, chosen: Mapping[str, Mapping[str, str]]) -> list[Cell]:
        specs = [UNDEFENDED, *grid.levels(NAMES[self.family], levels(grid, self.family))]
        cells = [cell for each in chosen.values() for cell in grid.attack_cells(specs, **each)]
        return sorted(cells, key=lambda cell: (cell.settings["seed"], cell.settings["start"]))

    def numbers(self, results: Results) -> Table:
        """Means of each attacker, defense and level with intervals."""
        cells = grouped(
            select(results, "attack"), lambda s: (attacker_of(s), *name_and_level(s["defense"]))
        )
        rows = [
            (*key, metric, *summarise(cells[key], metric))
            for metric in METRICS
            for key in sorted(cells, key=lambda k: (k[0], k[1], k[2] or 0.0))
        ]
        columns = {"attacker": str, "defense": str, "level": float, "metric": str}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each attacker, on one scale; of photos there is the last one alone."""
        rows = [row for row in table.as_dicts() if row["metric"] == "mse"]
        blanks = blank_errors(table)
        shown = {
            name: ATTACKERS[name] for name in (ATTACKERS if self.data == "MNIST" else ("aware",))
        }
        width = 2.6 if len(shown) > 1 else 3.4
        with figure(path_stem, columns=len(shown), width=width) as (made, axes):
            for axis, (attacker, title) in zip(axes, shown.items(), strict=True):
                mine = [row for row in rows if row["attacker"] == attacker]
                axis.set(title=title)
                if not mine:
                    no_cells(axis)
                    continue
                for place, name in enumerate(NAMES[self.family]):
                    curve = [row for row in mine if row["defense"] == name]
                    style = {"color": COLOURS[name], "marker": MARKERS[name], "ls": LINES[name]}
                    level_curve(axis, curve, label_of(name), aside=apart(place, 2), **style)
                blind_guess(axis.axhline, blanks)
                mark_levels(
                    axis,
                    sorted({number(r["level"]) for r in mine if r["level"] is not None}),
                    self.family == "pruning",
                )
            axes[0].set_ylabel(MSE.replace(" (", "\n(matched, "))
            axes[len(axes) // 2].set_xlabel(AXES[self.family])
            if rows:
                one_scale(axes, bottom=0.0, least_top=HEADROOM * max(blanks, default=0.0))
                legend_below(made, axes)
