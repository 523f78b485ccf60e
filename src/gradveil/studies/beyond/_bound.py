"""The lower bound beside what every attack achieves."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradveil._drawing import BLACK
from gradveil.catalog import Spec, build_attack
from gradveil.studies.figures import (
    OTHERS,
    Row,
    apart,
    figure,
    level_curve,
    mark_levels,
    no_cells,
    one_scale,
)
from gradveil.studies.runner import Cell, Results, Settings, Table
from gradveil.studies.shared import (
    BOUND,
    HONEST,
    BoundGrid,
    HonestGrid,
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
MODEL = "simple-conv-net"
THE_BOUND, PRIOR_MEAN = "bound", "prior mean"
CANDIDATES, LEARNED = "candidates", "learned"
FLOOR = 1e-4
"""Smaller errors, which for candidates are mostly 0, are drawn here."""

Key = tuple[str, str, float | None]


@dataclass(frozen=True)
class BoundStudy:
    """Single images under noise whose plan is public, so that bounds count all that is sent.

    The Gaussian bound is a reference: real images are not Gaussian. What holds for them is the
    exact error of an attacker who is told candidates, the truth among them.
    """

    name: str = "bound-against-attacks"
    title: str = "MNIST: the lower bound beside the errors of attacks"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """The bounds and every attack for each image, defense and scale."""
        grid, honest = BOUND[preset], HONEST[preset]
        defenses = [defense_spec(name, scale) for scale in grid.scales for name in NAMES]
        cells = [
            cell
            for start in grid.starts
            for defense in defenses
            for cell in _cells(grid, honest, start, defense)
        ]
        more = [scale for scale in honest.scales if scale not in grid.scales]
        cells += [
            _candidates(grid, honest, start, defense_spec(name, scale))
            for start in grid.starts
            for scale in more
            for name in NAMES
        ]
        return [*cells, *_learned(grid, honest, defenses)]

    def numbers(self, results: Results) -> Table:
        """Mean squared errors per entry, of the bounds, of attacks and of the prior's mean."""
        groups: dict[Key, tuple[list[Pair], str]] = {}
        for key, pairs in grouped(select(results, "attack"), _key).items():
            groups[key] = (pairs, "mse")
        for (_, name, level), pairs in grouped(select(results, "bound"), _key).items():
            groups[(THE_BOUND, name, level)] = (pairs, "bound")
            groups[(PRIOR_MEAN, name, level)] = (pairs, "prior_variance")
        for (_, name, level), pairs in grouped(select(results, "candidate-bound"), _key).items():
            groups[(CANDIDATES, name, level)] = (pairs, "error")
        rows = [
            *((*key, *summarise(*groups[key])) for key in sorted(groups, key=_order)),
            *_learned_rows(results),
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
                for place, (what, (label, style)) in enumerate(LOOKS.items()):
                    curve = [_above_floor(row) for row in mine if row["what"] == what]
                    if curve:
                        aside = apart(place, len(LOOKS), points=1.6)
                        level_curve(axis, curve, label, aside=aside, **{"lw": 1.0, **style})
                mark_levels(axis, sorted({number(r["level"]) for r in mine}), percent=False)
                axis.set_yscale("log")
            one_scale(axes)
            axes[0].set_ylabel("MSE per pixel (normalised units)")
            if rows:
                axes[1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


def _cells(grid: BoundGrid, honest: HonestGrid, start: int, defense: str) -> list[Cell]:
    common = _common(grid, start, defense)
    attacks = [
        {"attack": a, "mechanism": "known" if build_attack(a).knows_defense else "unknown"}
        for a in grid.attacks
    ]
    bound = Cell("bound", {**common, "prior_samples": grid.prior_samples})
    candidates = _candidates(grid, honest, start, defense)
    return [bound, candidates, *(Cell("attack", {**common, **attack}) for attack in attacks)]


def _candidates(grid: BoundGrid, honest: HonestGrid, start: int, defense: str) -> Cell:
    choice = {
        "candidates": honest.candidates,
        "trials": honest.trials,
        "population": honest.population,
    }
    return Cell("candidate-bound", {**_common(grid, start, defense), **choice})


def _common(grid: BoundGrid, start: int, defense: str) -> dict[str, Any]:
    """One image under one defense, whose plan is public."""
    common: dict[str, Any] = {
        "data": grid.data,
        "model": MODEL,
        "start": start,
        "size": 1,
        "defense": defense,
        "seed": 0,
    }
    return {**common, "public": grid.public} if is_optimal(defense) else common


def _learned(grid: BoundGrid, honest: HonestGrid, defenses: list[str]) -> list[Cell]:
    """One cell for all defenses, which share what is learned."""
    if honest.learned is None:
        return []
    planned = [[each, grid.public if is_optimal(each) else None] for each in defenses]
    common = {"data": grid.data, "model": MODEL, "defenses": planned}
    return [Cell("learned-bound", {**common, **honest.learned})]


def _learned_rows(results: Results) -> Iterator[tuple[Any, ...]]:
    for settings, result in select(results, "learned-bound"):
        for defense, found in result["bounds"].items():
            ends = (found["bound"], found["low"], found["high"], settings["batches"])
            yield (LEARNED, *name_and_level(defense), *ends)


def _above_floor(row: Row) -> Row:
    """The row with nothing below what a logarithmic axis shows."""
    ends = {name: row[name] for name in ("mean", "low", "high")}
    return {**row, **{n: None if e is None else max(number(e), FLOOR) for n, e in ends.items()}}


def _order(key: Key) -> tuple[bool, str, str, float]:
    return key[0] != THE_BOUND, key[0], key[1], key[2] or 0.0


def _key(settings: Settings) -> Key:
    return (
        Spec.parse(settings.get("attack", THE_BOUND)).name,
        *name_and_level(settings["defense"]),
    )


LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    PRIOR_MEAN: ("guessing the\nprior's mean", {"color": "0.5", "ls": ":", "marker": ""}),
    THE_BOUND: ("reference\n(Gaussian prior)", {"color": BLACK, "lw": 2.2, "marker": "_"}),
    LEARNED: ("learned prior\n(errs upwards)", {"color": BLACK, "ls": "--", "marker": "x"}),
    CANDIDATES: (
        "bound that holds:\nbest of all attackers\nwith candidates\n(0 is drawn at 10⁻⁴)",
        {"color": BLACK, "ls": (0, (1, 1)), "lw": 2.2, "marker": "*", "markersize": 7},
    ),
    "paper": ("Inverting Gradients\n(paper)", {"color": OTHERS[1], "marker": "o"}),
    "strong": ("Inverting Gradients\n(tuned)", {"color": OTHERS[0], "marker": "s", "ls": "--"}),
    "adaptive": ("adaptive\n(knows the defense)", {"color": OTHERS[2], "marker": "D"}),
    "dlg": ("DLG", {"color": OTHERS[3], "marker": "^", "ls": "-."}),
    "idlg": ("iDLG", {"color": OTHERS[4], "marker": "v", "ls": "--"}),
    "grad-inversion": ("GradInversion", {"color": OTHERS[5], "marker": "P", "ls": "-."}),
}
"""The label and the style of each curve, in the order of the legend."""
