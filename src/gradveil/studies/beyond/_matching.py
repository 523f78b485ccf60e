"""The paper's attacks, scored with and without matching of images."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradveil._drawing import BLUE, ORANGE
from gradveil.studies.figures import MSE, Row, bars, figure, no_cells
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import (
    MNIST,
    NOISE,
    PRUNING,
    grouped,
    is_pruning,
    label_of,
    name_and_level,
    number,
    select,
    summarise,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCORES = {"unmatched_mse": "place by place (as in the paper)", "mse": "matched to the truth"}


@dataclass(frozen=True)
class MatchingStudy:
    """MSE before and after the best assignment of images, for every MNIST attack of the paper."""

    name: str = "matching"
    title: str = "MNIST: what matching images to the truth changes"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """The attacks of mnist-pruning and mnist-noise."""
        grid = MNIST[preset]
        specs = [*grid.levels(PRUNING, grid.ratios), *grid.levels(NOISE, grid.scales)]
        return grid.attack_cells(["no-defense", *specs])

    def numbers(self, results: Results) -> Table:
        """Both errors of each defense and level, and the share of images out of place."""
        cells = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        rows = []
        order = ["no-defense", *PRUNING, *NOISE]
        for defense in sorted(cells, key=lambda d: (order.index(d[0]), d[1] or 0.0)):
            pairs = cells[defense]
            moved = [
                place != partner for _, r in pairs for place, partner in enumerate(r["assignment"])
            ]
            away = sum(moved) / len(moved)
            rows += [(*defense, score, *summarise(pairs, score), away) for score in SCORES]
        columns = {"defense": str, "level": float, "metric": str}
        numbers = {"mean": float, "low": float, "high": float, "n": int, "out_of_place": float}
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Two points for each defense and level."""
        rows = table.as_dicts()
        keys = list(dict.fromkeys((str(r["defense"]), r["level"]) for r in rows))
        with figure(path_stem, width=5.4, height=max(2.2, 0.22 * len(keys) + 0.9)) as (_, [axis]):
            if not rows:
                no_cells(axis)
                return
            for place, key in enumerate(reversed(keys)):
                self._points(axis, place, [r for r in rows if (r["defense"], r["level"]) == key])
            names = [_text(name, level) for name, level in reversed(keys)]
            axis.set_yticks(range(len(keys)), names)
            axis.set_xlabel(MSE)
            handles, labels = axis.get_legend_handles_labels()
            axis.legend(handles[:2], labels[:2], loc="best")

    def _points(self, axis: "Axes", place: int, rows: list[Row]) -> None:
        styles = {"unmatched_mse": (ORANGE, "o", 0.14), "mse": (BLUE, "s", -0.14)}
        for row in rows:
            colour, marker, shift = styles[str(row["metric"])]
            axis.errorbar(
                [number(row["mean"])],
                [place + shift],
                xerr=bars([row]),
                color=colour,
                marker=marker,
                ls="none",
                elinewidth=0.9,
                capsize=2,
                label=SCORES[str(row["metric"])],
            )


def _text(name: str, level: object) -> str:
    if not isinstance(level, (int, float)):
        return label_of(name)
    shown = f"{level * 100:g}%" if is_pruning(name) else f"{level:g}"
    return f"{label_of(name)} {shown}"
