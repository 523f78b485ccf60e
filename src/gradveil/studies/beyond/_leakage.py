"""What is recovered from a message, at several stages of the model's training."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradveil.scoring import against_guess, gain_over_guess
from gradveil.studies.figures import (
    COLOURS,
    DASHES,
    MARKERS,
    MSE,
    Row,
    apart,
    bars,
    figure,
    legend_below,
    move_aside,
    no_cells,
    one_scale,
)
from gradveil.studies.runner import Cell, Results, Settings, Table
from gradveil.studies.shared import (
    LEAKAGE,
    LeakageGrid,
    Pair,
    grouped,
    label_of,
    name_and_level,
    nested,
    number,
    right_share,
    select,
    summarise,
    units_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNDEFENDED = "no-defense"
IDENTIFY = "candidates"
ATTACKERS = {
    "unaware": "attack that does not\nknow the defense",
    "aware": "attack that knows\nthe defense",
    IDENTIFY: "right one of the candidates,\nrest of the batch known",
}

Key = tuple[str, int, str, float | None]
"""Attacker, steps of training, defense and its level."""


@dataclass(frozen=True)
class LeakageStudy:
    """The same batches, attacked as they are sent before, early and late in a training."""

    name: str = "leakage-through-training"
    title: str = "MNIST: what is recovered, against the steps of training"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """Both attackers and the candidates, for each stage and defense; the first batch first."""
        grid = LEAKAGE[preset]
        each = [
            _cells(grid, trained, defense, public)
            for trained in grid.trained
            for defense, public in grid.defenses.items()
        ]
        return [cell for cells in zip_longest(*each) for cell in cells if cell is not None]

    def numbers(self, results: Results) -> Table:
        """Errors and shares with intervals, the blind guess's, and whether the attack can judge."""
        rows: list[tuple[Any, ...]] = []
        attacks = grouped(select(results, "attack"), _key)
        for key, pairs in sorted(attacks.items(), key=_order):
            undefended = attacks.get((key[0], key[1], UNDEFENDED, None), [])
            guess = summarise(pairs, "blank_mse")[0]
            rows.append((*key, "mse", *summarise(pairs, "mse"), guess, _judges(undefended)))
        found = grouped(select(results, "identification"), _key)
        for key, pairs in sorted(found.items(), key=_order):
            chance = 1 / pairs[0][0]["candidates"]
            rows.append((*key, "share", *right_share(pairs), chance, True))
        columns = {"attacker": str, "trained": int, "defense": str, "level": float, "metric": str}
        numbers_of = {"mean": float, "low": float, "high": float, "n": int}
        return Table({**columns, **numbers_of, "guess": float, "judges": bool}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each attacker; where it cannot judge, the panel is grey and says so."""
        rows = table.as_dicts()
        with figure(path_stem, columns=3, width=2.8, height=3.0) as (made, axes):
            for axis, (attacker, title) in zip(axes, ATTACKERS.items(), strict=True):
                mine = [row for row in rows if row["attacker"] == attacker]
                axis.set(title=title, xlabel="steps of training")
                if not mine:
                    no_cells(axis)
                    continue
                _draw_panel(axis, mine)
            axes[0].set_ylabel(MSE.replace(" (", "\n(matched, "))
            axes[2].set(ylabel="share of trials", ylim=(-0.04, 1.06))
            one_scale(axes[:2], bottom=-0.05)
            legend_below(made, axes, columns=5)


def _cells(grid: LeakageGrid, trained: int, defense: str, public: Any) -> Iterator[Cell]:
    common = {
        "data": grid.data,
        "model": grid.model,
        "size": grid.size,
        "trained": trained,
        "defense": defense,
        "seed": 0,
    }
    planned = {"public": public} if public else {}
    for start in grid.starts:
        for attacker in grid.attackers:
            yield Cell("attack", {**common, **attacker, **planned, "start": start})
    choice = {"candidates": grid.candidates, "one_class": True, "trials": grid.trials}
    for draw in range(grid.draws):
        own = {"examples": 2000, "public": public, "start": draw}
        yield Cell("identification", {**common, **choice, **own})


def _key(settings: Settings) -> Key:
    attacker = IDENTIFY
    if "attack" in settings:
        attacker = "aware" if settings["mechanism"] == "known" else "unaware"
    return attacker, settings["trained"], *name_and_level(settings["defense"])


def _order(item: tuple[Key, list[Pair]]) -> tuple[int, bool, str, int]:
    attacker, trained, defense, _ = item[0]
    return [*ATTACKERS].index(attacker), defense != UNDEFENDED, defense, trained


def _judges(undefended: list[Pair]) -> bool | None:
    """Whether the attack on the undefended message beats a blind guess; None if it was not run."""
    if not undefended:
        return None
    errors, guesses = (units_of(undefended, name) for name in ("mse", "blank_mse"))
    gains = {unit: gain_over_guess(errors[unit], guesses[unit]) for unit in errors}
    return against_guess(nested(gains), torch.Generator().manual_seed(0)).works


def _draw_panel(axis: "Axes", rows: list[Row]) -> None:
    stages = sorted({int(number(row["trained"])) for row in rows})
    names = list(dict.fromkeys(str(row["defense"]) for row in rows))
    for place, name in enumerate(names):
        mine = sorted((r for r in rows if r["defense"] == name), key=lambda r: number(r["trained"]))
        drawn = axis.errorbar(
            [stages.index(int(number(row["trained"]))) for row in mine],
            [number(row["mean"]) for row in mine],
            yerr=bars(mine),
            label=label_of(name),
            color=COLOURS[name],
            marker=MARKERS[name],
            ls=DASHES[place % len(DASHES)],
            capsize=2.5,
            elinewidth=0.9,
        )
        move_aside(axis, drawn, apart(place, len(names)))
    guesses = {int(number(row["trained"])): number(row["guess"]) for row in rows}
    axis.plot(
        range(len(stages)), [guesses[s] for s in stages], color="0.45", ls=":", label="blind guess"
    )
    for place, stage in enumerate(stages):
        if any(row["judges"] is False for row in rows if row["trained"] == stage):
            axis.axvspan(place - 0.4, place + 0.4, color="0.9", lw=0, zorder=0)
            axis.text(
                place, 0.03, "cannot judge", rotation=90, color="0.35", fontsize=7,
                ha="center", va="bottom", transform=axis.get_xaxis_transform(),
            )  # fmt: skip
    axis.set_xticks(range(len(stages)), [str(stage) for stage in stages])
    axis.set_xlim(-0.5, len(stages) - 0.5)
