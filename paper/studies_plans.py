"""Beyond the paper: what estimates and plans are worth, and what plans reveal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradveil._drawing import BLUE, GREEN, ORANGE, RED
from gradveil._runner import Cell, Settings

from .figures import (
    DASHES,
    OTHERS,
    SHAPES,
    apart,
    bars,
    figure,
    legend_below,
    level_curve,
    mark_levels,
    no_cells,
    one_scale,
)
from .grids import FINGERPRINT, PLANS, PUBLIC_PLANS, FingerprintGrid
from .numbers import (
    Pair,
    Unit,
    grouped,
    is_optimal,
    name_and_level,
    number,
    right_share,
    select,
    summarise,
    summary,
)
from .study import MEANS, Results, Study, Table, cell_of

ESTIMATORS = {
    "isotropic": "isotropic noise",
    "layers": "one level per layer",
    "paper(probes=10)": "paper's algorithm, 10 probes",
    "sketch(probes=1)": "sketch, 1 probe",
    "per-example(probes=1)": "per example, 1 probe",
    "per-example(probes=4)": "per example, 4 probes",
    "auto": "auto",
}


@dataclass(frozen=True)
class EstimatorStudy(Study):
    """What each estimate reaches of the optimal bound at equal utility, and what it costs."""

    name: str = "estimator-share"
    title = "MNIST: share of the optimal bound against cost"

    def cells(self, preset: str) -> list[Cell]:
        """Shares on several batches, and one timing for each estimator."""
        plan = PLANS[preset]
        cells = []
        for trained in plan.trained:
            common = {"data": plan.grid.data, "model": plan.grid.model, "trained": trained}
            for name in ESTIMATORS:
                here: dict[str, Any] = {**common, "size": 16, "estimator": name}
                share = {**here, "reference_probes": plan.probes, "seed": 0}
                cells += [
                    cell_of("estimator_share", {**share, "start": 16 * batch})
                    for batch in range(plan.batches)
                ]
                cells.append(
                    cell_of("estimator_cost", {**here, "start": 0, "repeats": plan.repeats})
                )
        return cells

    def numbers(self, results: Results) -> Table:
        """Mean shares over batches with intervals, and the cost in plain gradients."""
        costs = {
            _estimators_key(s): float(r["ratio"]) for s, r in select(results, "estimator_cost")
        }
        shares = grouped(select(results, "estimator_share"), _estimators_key)
        rows = [
            (*key, ESTIMATORS.get(key[1], key[1]), *summarise(pairs, "share"), costs.get(key))
            for key, pairs in shares.items()
        ]
        return Table(("trained", "estimator", "label", *MEANS, "cost"), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A panel for the fresh model and one for each trained one."""
        rows = table.as_dicts()
        states = sorted({int(number(row["trained"])) for row in rows}) or [0]
        with figure(path_stem, columns=len(states), width=4.6, height=3.0) as (_, axes):
            for axis, trained in zip(axes, states, strict=True):
                if axis is not axes[0]:
                    axis.sharex(axes[0])
                mine = [row for row in rows if row["trained"] == trained]
                if not mine:
                    no_cells(axis)
                for place, row in enumerate(mine):
                    axis.errorbar(
                        [number(row["cost"])],
                        [number(row["mean"])],
                        yerr=bars([row]),
                        color=OTHERS[place % 8],
                        marker=SHAPES[place % 8],
                        ls="none",
                        capsize=2.5,
                        markersize=6,
                        label=str(row["label"]),
                    )
                axis.set_title("fresh model" if not trained else f"after {trained} steps")
                axis.set(xlabel="time of a defended gradient / plain gradient", ylim=(0, 1.04))
                axis.set_xscale("log")
                axis.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
                axis.minorticks_off()
            axes[0].set_ylabel("share of the optimal bound")
            if rows:
                axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


def _estimators_key(settings: Settings) -> tuple[int, str]:
    return (settings.get("trained", 0), settings["estimator"])


PARAMETER, LAYER, PUBLIC, ISOTROPIC = (
    "private, per parameter", "private, per layer", "public", "isotropic",
)  # fmt: skip
DEFENSES = {
    PARAMETER: "optimal-noise(scale={}, source='private')",
    LAYER: "optimal-noise(scale={}, granularity='layer', source='private')",
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
class FingerprintStudy(Study):
    """How often the right candidate is found, by an attacker who knows the rest of the batch."""

    name: str = "plan-fingerprint"
    title = "Which of the candidates it was, told from the message: four kinds of plan"

    def cells(self, preset: str) -> list[Cell]:
        """Each plan at each scale on each draw of candidates; the first draw of all comes first."""
        return [cell for grid in FINGERPRINT[preset] for cell in _cells(grid)]

    def numbers(self, results: Results) -> Table:
        """Shares of trials, and bits, with intervals over trials and draws of candidates."""
        groups = grouped(select(results, "identification"), _fingerprint_key)
        rows = [
            (*key, *right_share(pairs), *_bits(pairs, most=log2(key[4])))
            for key, pairs in groups.items()
        ]
        columns = ("data", "trained", "plan", "level", "candidates", "one_class")
        bits = ("bits_mean", "bits_low", "bits_high")
        return Table((*columns, *MEANS, *bits), rows)

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
                    yield cell_of("identification", {**common, **own})


def _fingerprint_key(settings: Settings) -> Key:
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


CLIP = 0.05
"""Small enough to clamp entries of the MNIST CNN's gradient; the paper's 1 clamps none."""

THEOREMS: Mapping[str, tuple[str, str]] = {
    "Theorem 2\nnoise": ("gradient-noise(scale=0.1)", "optimal-noise(scale=0.1, source='private')"),
    "Theorem 3\nclipping and noise": (
        f"clamped-noise(scale=0.1, clip={CLIP})",
        f"optimal-clamped-noise(scale=0.1, clip={CLIP}, least=0.0, source='private')",
    ),
    "Theorem 4\npruning": (
        "gradient-pruning(ratio=0.9)",
        "optimal-pruning(ratio=0.9, source='private')",
    ),
}
"""Theorem 3 in the paper's form, which sends clamped entries bare: to hide these, too, has a price
of its own, which is not what the shares compare."""
PLANNED = {
    "classical": (RED, "classical (isotropic, magnitude)"),
    "global": (GREEN, "global: moments of public data"),
    "local": (BLUE, "local: the batch itself (leaks by its plan)"),
}


@dataclass(frozen=True)
class PlanStudy(Study):
    """What a plan keeps of the best protection of a batch, at equal utility on that batch."""

    name: str = "local-against-global"
    title = "MNIST: plans from the batch itself against plans from public data"

    def cells(self, preset: str) -> list[Cell]:
        """The three plans of each theorem on several batches."""
        plan = PLANS[preset]
        public = {"start": 2000, "size": 16, "batches": plan.public_batches}
        common: dict[str, Any] = {
            "data": plan.grid.data,
            "model": plan.grid.model,
            "size": 16,
            "probes": plan.probes,
            "seed": 0,
        }
        return [
            cell_of(
                "plan_quality",
                {**common, "trained": trained, "start": 16 * batch, "defense": d, "public": p},
            )
            for trained in plan.trained
            for batch in range(plan.batches)
            for classical, optimal in THEOREMS.values()
            for d, p in ((classical, None), (optimal, None), (optimal, public))
        ]

    def numbers(self, results: Results) -> Table:
        """Mean shares with intervals over batches."""
        cells = grouped(select(results, "plan_quality"), _plans_key)
        rows = [(*key, *summarise(pairs, "share")) for key, pairs in cells.items()]
        return Table(("trained", "defense", "plan", *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Bars by theorem and plan; a panel for the fresh model and one for each trained one."""
        rows = table.as_dicts()
        states = sorted({int(number(row["trained"])) for row in rows}) or [0]
        with figure(path_stem, columns=len(states), width=4.6, height=3.0) as (made, axes):
            for axis, trained in zip(axes, states, strict=True):
                mine = [row for row in rows if row["trained"] == trained]
                if not mine:
                    no_cells(axis)
                for place, (plan, (colour, label)) in enumerate(PLANNED.items()):
                    for group, pair in enumerate(THEOREMS.values()):
                        planned = [r for r in mine if r["plan"] == plan and r["defense"] in pair]
                        axis.bar(
                            [group + 0.27 * (place - 1)] * len(planned),
                            [number(row["mean"]) for row in planned],
                            0.25,
                            yerr=bars(planned) if planned else None,
                            color=colour,
                            hatch=("", "//", "..")[place],
                            edgecolor="white",
                            ecolor="0.2",
                            capsize=2,
                            label=label if group == 0 else None,
                        )
                axis.set_title("fresh model" if not trained else f"after {trained} steps")
                axis.set_xticks(range(len(THEOREMS)), [*THEOREMS])
                axis.set_ylim(0, 1.05)
            axes[0].set_ylabel("share of the best protection\nat equal utility")
            legend_below(made, axes, columns=max(2, len(axes)))


def _plans_key(settings: Settings) -> tuple[int, str, str]:
    defense = settings["defense"]
    plan = "global" if settings["public"] else "local"
    return (
        settings.get("trained", 0),
        defense,
        plan if is_optimal(defense) else "classical",
    )


LABELS = {
    "limit": "limit: the population's moments",
    "private": "the private batch itself (reveals it)",
    "entry-wise": "public, each entry (Theorem 2)",
    "rows x columns": "public, rows × columns",
    "layer": "public, one level per layer",
    "shrunk": "public, shrunk",
    "model": "model alone",
    "released": "released updates",
}
LINES = ("entry-wise", "rows x columns", "layer", "shrunk")


@dataclass(frozen=True)
class PublicPlanStudy(Study):
    """The gain over isotropic noise at equal U2 of plans that reveal nothing, and of others."""

    name: str = "public-plans"
    title = "MNIST: gain of plans from public examples over isotropic noise"

    def cells(self, preset: str) -> list[Cell]:
        """One cell for each private batch, with all plans in it."""
        plan = PUBLIC_PLANS[preset]
        common: dict[str, Any] = {
            "data": plan.data,
            "model": plan.model,
            "size": 16,
            "public": plan.public,
            "counts": list(plan.counts),
            "population": plan.population,
            "strange": plan.strange,
            "probes": plan.probes,
            "seed": 0,
        }
        return [
            cell_of("public_plans", {**common, "trained": trained, "start": 16 * batch})
            for trained in plan.trained
            for batch in range(plan.batches)
        ]

    def numbers(self, results: Results) -> Table:
        """Mean gains with intervals over private batches."""
        groups: dict[tuple[int, str, int], dict[Unit, Tensor]] = {}
        for settings, result in select(results, "public_plans"):
            for name, gain in result["gains"].items():
                plan, _, count = name.rpartition("/")
                key = (settings["trained"], plan, int(count))
                unit = (settings["start"], settings["seed"])
                groups.setdefault(key, {})[unit] = torch.tensor([gain], dtype=torch.float64)
        rows = [(*key, *summary(units)) for key, units in sorted(groups.items())]
        return Table(("trained", "plan", "public batches", *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Gain against the number of public batches; a panel for each state of the model."""
        rows = table.as_dicts()
        states = sorted({int(number(row["trained"])) for row in rows}) or [0]
        with figure(path_stem, columns=len(states), width=3.6, height=3.0) as (made, axes):
            for axis, trained in zip(axes, states, strict=True):
                mine = [row for row in rows if row["trained"] == trained]
                if not mine:
                    no_cells(axis)
                _draw_panel(axis, mine)
                axis.set_title("fresh model" if not trained else f"after {trained} steps")
                axis.set_xlabel("public batches")
            axes[0].set_ylabel("gain over isotropic noise\nat equal utility")
            one_scale(axes)
            legend_below(made, axes, columns=3)


def _draw_panel(axis: Any, rows: list[dict[str, Any]]) -> None:
    axis.axhline(1.0, color="0.6", lw=1)
    for place, (plan, label) in enumerate(LABELS.items()):
        mine = [row for row in rows if row["plan"] == plan]
        colour = OTHERS[place % len(OTHERS)]
        if plan in LINES:
            axis.errorbar(
                [number(row["public batches"]) for row in mine],
                [number(row["mean"]) for row in mine],
                yerr=bars(mine) if mine else None,
                color=colour,
                marker=SHAPES[place % len(SHAPES)],
                ls=DASHES[place % len(DASHES)],
                capsize=2,
                label=label,
            )
        for row in mine if plan not in LINES else ():
            axis.axhline(number(row["mean"]), color=colour, ls=DASHES[place], label=label)
    counts = sorted({number(row["public batches"]) for row in rows if row["plan"] in LINES})
    if counts:
        mark_levels(axis, counts, percent=False)


STUDIES: tuple[Study, ...] = (
    EstimatorStudy(),
    PlanStudy(),
    FingerprintStudy(),
    PublicPlanStudy(),
)
