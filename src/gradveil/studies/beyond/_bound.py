"""The lower bound beside what every attack achieves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradveil._drawing import BLACK
from gradveil.catalog import Spec, build_attack
from gradveil.studies.figures import OTHERS, figure, level_curve, mark_levels, no_cells, one_scale
from gradveil.studies.runner import Cell, Results, Settings, Table
from gradveil.studies.shared import (
    BOUND,
    BoundGrid,
    Pair,
    defense_spec,
    grouped,
    is_optimal,
    label_of,
    name_and_level,
    number,
    select,
    summarise,
)

NAMES = ("gradient-noise", "optimal-noise")
THE_BOUND, PRIOR_MEAN = "bound", "prior mean"

Key = tuple[str, str, float | None]


@dataclass(frozen=True)
class BoundStudy:
    """Single images under noise whose plan is public, so that the bound counts all that is sent."""

    name: str = "bound-against-attacks"
    title: str = "MNIST: the lower bound beside the errors of attacks"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """The bound and every attack for each image, defense and scale."""
        grid = BOUND[preset]
        return [
            cell
            for start in grid.starts
            for scale in grid.scales
            for name in NAMES
            for cell in _cells(grid, start, defense_spec(name, scale))
        ]

    def numbers(self, results: Results) -> Table:
        """Mean squared errors per entry, of the bound, of attacks and of the prior's mean."""
        groups: dict[Key, tuple[list[Pair], str]] = {}
        for key, pairs in grouped(select(results, "attack"), _key).items():
            groups[key] = (pairs, "mse")
        for (_, name, level), pairs in grouped(select(results, "bound"), _key).items():
            groups[(THE_BOUND, name, level)] = (pairs, "bound")
            groups[(PRIOR_MEAN, name, level)] = (pairs, "prior_variance")
        rows = [
            (*key, *summarise(*groups[key]))
            for key in sorted(groups, key=lambda k: (k[0] != THE_BOUND, k[0], k[1], k[2] or 0.0))
        ]
        columns = {"what": str, "defense": str, "level": float}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({**columns, **numbers}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each kind of noise: the bound in black, attacks in colours."""
        rows = table.as_dicts()
        with figure(path_stem, columns=2, height=3.1) as (_, axes):
            for axis, name in zip(axes, NAMES, strict=True):
                mine = [row for row in rows if row["defense"] == name]
                axis.set(title=label_of(name), xlabel="noise scale (root mean square)")
                if not mine:
                    no_cells(axis)
                    continue
                for what, (label, style) in LOOKS.items():
                    curve = [row for row in mine if row["what"] == what]
                    if curve:
                        level_curve(axis, curve, label, **{"lw": 1.0, **style})
                mark_levels(axis, sorted({number(r["level"]) for r in mine}), percent=False)
                axis.set_yscale("log")
            one_scale(axes)
            axes[0].set_ylabel("MSE per pixel (normalised units)")
            if rows:
                axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


def _cells(grid: BoundGrid, start: int, defense: str) -> list[Cell]:
    common: dict[str, Any] = {
        "data": grid.data,
        "model": "simple-conv-net",
        "start": start,
        "size": 1,
        "defense": defense,
        "seed": 0,
    }
    if is_optimal(defense):
        common["public"] = grid.public
    attacks = [
        {"attack": a, "mechanism": "known" if build_attack(a).knows_defense else "unknown"}
        for a in grid.attacks
    ]
    bound = Cell("bound", {**common, "prior_samples": grid.prior_samples})
    return [bound, *(Cell("attack", {**common, **attack}) for attack in attacks)]


def _key(settings: Settings) -> Key:
    return (
        Spec.parse(settings.get("attack", THE_BOUND)).name,
        *name_and_level(settings["defense"]),
    )


LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    THE_BOUND: ("lower bound\n(Gaussian prior)", {"color": BLACK, "lw": 2.2, "marker": "_"}),
    PRIOR_MEAN: ("guessing the\nprior's mean", {"color": "0.5", "ls": ":", "marker": ""}),
    "paper": ("Inverting Gradients\n(paper)", {"color": OTHERS[1], "marker": "o"}),
    "strong": ("Inverting Gradients\n(tuned)", {"color": OTHERS[0], "marker": "s"}),
    "adaptive": ("adaptive\n(knows the defense)", {"color": OTHERS[2], "marker": "D"}),
    "dlg": ("DLG", {"color": OTHERS[3], "marker": "^"}),
    "idlg": ("iDLG", {"color": OTHERS[4], "marker": "v"}),
    "grad-inversion": ("GradInversion", {"color": OTHERS[5], "marker": "P"}),
}
"""The label and the style of each curve, in the order of the legend."""
