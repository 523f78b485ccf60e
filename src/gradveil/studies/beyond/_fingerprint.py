"""A plan from the private batch as a fingerprint of it, at any amount of noise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

from gradveil._drawing import BLUE, GREEN, ORANGE, RED
from gradveil.studies.figures import apart, figure, legend_below, level_curve, mark_levels, no_cells
from gradveil.studies.runner import Cell, Results, Settings, Table
from gradveil.studies.shared import (
    FINGERPRINT,
    FingerprintGrid,
    Pair,
    grouped,
    name_and_level,
    number,
    right_share,
    select,
    summarise,
)

PARAMETER, LAYER, PUBLIC, ISOTROPIC = (
    "private, per parameter", "private, per layer", "public", "isotropic",
)  # fmt: skip
DEFENSES = {
    PARAMETER: "optimal-noise(scale={}, plan='private')",
    LAYER: "optimal-noise(scale={}, granularity='layer', plan='private')",
    PUBLIC: "optimal-noise(scale={})",
    ISOTROPIC: "gradient-noise(scale={})",
}
LOOKS: dict[str, dict[str, Any]] = {
    PARAMETER: {"color": RED, "marker": "D", "ls": "-"},
    LAYER: {"color": ORANGE, "marker": "s", "ls": "--"},
    PUBLIC: {"color": GREEN, "marker": "o", "ls": "-."},
    ISOTROPIC: {"color": BLUE, "marker": "^", "ls": (0, (1, 1))},
}

Key = tuple[str, int, str, float, int, bool]
"""Data, training steps, kind of plan, scale, number of candidates, whether of one class."""


@dataclass(frozen=True)
class FingerprintStudy:
    """How often the right candidate is found, by an attacker who knows the rest of the batch."""

    name: str = "plan-fingerprint"
    title: str = "Which of the candidates it was, told from the message: four kinds of plan"
    figure: str = "beyond the paper"

    def cells(self, preset: str) -> list[Cell]:
        """Each plan at each scale on each draw of candidates; the first draw of all comes first."""
        return [cell for grid in FINGERPRINT[preset] for cell in _cells(grid)]

    def numbers(self, results: Results) -> Table:
        """Shares of trials, and bits, with intervals over trials and draws of candidates."""
        groups = grouped(select(results, "identification"), _key)
        rows = [
            (*key, *right_share(pairs), *_bits(pairs, most=log2(key[4])))
            for key, pairs in groups.items()
        ]
        columns: dict[str, type] = {"data": str, "trained": int, "plan": str, "level": float}
        columns |= {"candidates": int, "one_class": bool}
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        bits = {"bits_mean": float, "bits_low": float, "bits_high": float}
        return Table({**columns, **numbers, **bits}, rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for each data set and state of the model; chance is a dotted line."""
        rows = table.as_dicts()
        panels = list(dict.fromkeys((str(r["data"]), int(number(r["trained"]))) for r in rows))
        panels = panels or [("", 0)]
        columns = min(2, len(panels))
        lines = ceil(len(panels) / columns)
        with figure(path_stem, columns, lines, width=3.6, height=2.6) as (made, axes):
            for axis in axes[len(panels) :]:
                axis.axis("off")
            for axis, (data, trained) in zip(axes, panels, strict=False):
                mine = [r for r in rows if (r["data"], r["trained"]) == (data, trained)]
                axis.set_xlabel("noise scale (root mean square)")
                if not mine:
                    no_cells(axis)
                    continue
                for place, (plan, look) in enumerate(LOOKS.items()):
                    curve = [row for row in mine if row["plan"] == plan]
                    if curve:
                        aside = apart(place, len(LOOKS))
                        level_curve(axis, curve, plan, aside=aside, **look)
                axis.axhline(1 / number(mine[0]["candidates"]), color="0.4", ls=":", label="chance")
                mark_levels(axis, sorted({number(r["level"]) for r in mine}), percent=False)
                state = f"after {trained} steps" if trained else "fresh"
                classes = "one class" if mine[0]["one_class"] else "all classes"
                axis.set_title(f"{data}, {state}, {mine[0]['candidates']} candidates of {classes}")
                axis.set_ylim(-0.03, 1.05)
            for axis in axes[::columns]:
                axis.set_ylabel("share of trials with the right one")
            legend_below(made, axes, columns=5)


def _cells(grid: FingerprintGrid) -> Iterator[Cell]:
    common: dict[str, Any] = {
        "data": grid.data,
        "model": grid.model,
        "size": grid.size,
        "examples": grid.examples,
        "candidates": grid.candidates,
        "one_class": grid.one_class,
        "trials": grid.trials,
        "seed": 0,
    }
    for draw in range(grid.draws):
        for trained in grid.trained:
            for scale in grid.scales:
                for plan, spec in DEFENSES.items():
                    own = {
                        "start": draw,
                        "trained": trained,
                        "defense": spec.format(scale),
                        "public": grid.public if plan == PUBLIC else None,
                    }
                    yield Cell("identification", {**common, **own})


def _key(settings: Settings) -> Key:
    name, level = name_and_level(settings["defense"])
    plan = ISOTROPIC
    if name == "optimal-noise":
        plan = LAYER if "layer" in settings["defense"] else PARAMETER
        plan = PUBLIC if settings["public"] else plan
    assert level is not None
    candidates = settings["candidates"], settings["one_class"]
    return settings["data"], settings["trained"], plan, level, *candidates


def _bits(pairs: Sequence[Pair], most: float) -> list[float | None]:
    """The mean bits and their interval, within what bits can be."""
    found = summarise(pairs, "bits")[:3]
    return [None if entry is None else min(max(entry, 0.0), most) for entry in found]
