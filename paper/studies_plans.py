"""Beyond the paper: what estimates and plans are worth, and what plans reveal."""

from collections.abc import Mapping
from math import log2
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradveil._drawing import BLUE, GREEN, ORANGE, RED
from gradveil._runner import Cell, Settings

from .figures import AXES, OTHERS, Look, curve, curves, grouped_bars, mark_levels, panels, split
from .grids import CNN
from .numbers import (
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
from .study import MEANS, Results, Row, Study, Table, cell_of, presets, product_cells

PLANS = presets(
    {"data": "mnist", "batches": 6, "trained": (0, 60), "probes": 64, "public": 20, "repeats": 7},
    quick={"batches": 4, "trained": (0,), "probes": 8, "public": 8, "repeats": 3},
)
"""Batches of 16, on a fresh and on a trained model; `probes` of the reference for each example,
`public` batches that plans are made from, `repeats` of timings."""

ESTIMATORS = {
    "isotropic": "isotropic noise",
    "layers": "one level per layer",
    "paper(probes=10)": "paper's algorithm, 10 probes",
    "sketch(probes=1)": "sketch, 1 probe",
    "per-example(probes=1)": "per example, 1 probe",
    "per-example(probes=4)": "per example, 4 probes",
    "auto": "auto",
}


def estimator_cells(preset: str) -> list[Cell]:
    """What each estimate reaches of the optimal bound at equal utility, and what it costs."""
    grid = PLANS[preset]
    common = {"data": grid["data"], "model": CNN, "size": 16}
    share = {**common, "reference_probes": grid["probes"], "seed": 0}
    axes = {"trained": grid["trained"], "estimator": ESTIMATORS}
    cost = {**common, "repeats": grid["repeats"], "start": 0}
    starts = range(0, 16 * grid["batches"], 16)
    return [
        *product_cells("estimator_share", share, **axes, start=starts),
        *product_cells("estimator_cost", cost, **axes),
    ]


def estimator_numbers(results: Results) -> Table:
    """Mean shares over batches with intervals, and the cost in plain gradients."""
    key = itemgetter("trained", "estimator")
    costs = {key(s): float(r["ratio"]) for s, r in select(results, "estimator_cost")}
    shares = grouped(select(results, "estimator_share"), key)
    rows = [
        (*key, ESTIMATORS.get(key[1], key[1]), *summarise(pairs, "share"), costs.get(key))
        for key, pairs in shares.items()
    ]
    return Table(("trained", "estimator", "label", *MEANS, "cost"), rows)


def by_state(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of a fresh model, and of each trained one."""
    states = split(rows, "trained").items()
    return {f"after {steps} steps" if steps else "fresh model": own for steps, own in states}


def draw_estimators(table: Table, stem: Path) -> None:
    """Share against cost; a panel for the fresh model and one for each trained one."""
    labels = "time of a defended gradient / plain gradient", "share of the optimal bound"
    with panels(stem, by_state(table.where()), *labels, width=4.6) as shown:
        for axis, state, rows in shown:
            for place, row in enumerate(rows):
                curve(axis, [row], str(row["label"]), x="cost", **OTHERS[place % 8])
            axis.set(title=state, ylim=(0, 1.04), xscale="log")
            axis.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
            axis.minorticks_off()


PARAMETER, LAYER, PUBLIC, ISOTROPIC = (
    "private, per parameter", "private, per layer", "public", "isotropic",
)  # fmt: skip
FINGERPRINT_DEFENSES = {
    PARAMETER: "optimal-noise(scale={}, source='private')",
    LAYER: "optimal-noise(scale={}, granularity='layer', source='private')",
    PUBLIC: "optimal-noise(scale={})",
    ISOTROPIC: "gradient-noise(scale={})",
}
FINGERPRINT_LOOKS: dict[str, tuple[str, Look]] = {
    PARAMETER: (PARAMETER, {"color": RED, "marker": "D", "ls": "-"}),
    LAYER: (LAYER, {"color": ORANGE, "marker": "s", "ls": "--"}),
    PUBLIC: (PUBLIC, {"color": GREEN, "marker": "o", "ls": "-."}),
    ISOTROPIC: (ISOTROPIC, {"color": BLUE, "marker": "^", "ls": (0, (1, 1))}),
}
_DIGITS = {
    "data": "mnist",
    "model": CNN,
    "size": 4,
    "examples": 2000,  # candidates and the rest of the batch are drawn from the first so many
    "candidates": 60,
    "one_class": True,
    "trials": 50,
    "seed": 0,
}
_PHOTOS = {
    **_DIGITS,
    "data": "cifar10",
    "model": "conv-net(width=16)",
    "size": 1,
    "examples": 12,
    "candidates": 12,
    "one_class": False,
}
FINGERPRINT = presets(
    {
        "digits": _DIGITS,
        "trained": (0, 60),
        "scales": (0.1, 1.0, 100.0),
        "draws": 6,
        "photos": (_PHOTOS,),
    },
    quick={
        "digits": {**_DIGITS, "size": 1, "candidates": 8, "trials": 3},
        "trained": (0,),
        "scales": (1.0, 100.0),
        "draws": 2,
        "photos": (),
    },
    paper={"draws": 20},
)
"""The 20 embedded photos are few: one draw of 12 candidates of any class, the others are the public
ones; a model trained on them would know them by heart and send no gradient to tell them by."""


def fingerprint_cells(preset: str) -> list[Cell]:
    """How often the right candidate is found, by an attacker who knows the rest of the batch.

    Each plan at each scale on each draw of candidates; the first draw of all comes first.
    """
    grid = FINGERPRINT[preset]
    digits = {"start": 2000, "size": 4, "batches": 24}
    photos = {"start": 12, "size": 1, "batches": 8}
    every = [(draw, grid["digits"], digits, grid["trained"]) for draw in range(grid["draws"])]
    every += [(0, common, photos, (0,)) for common in grid["photos"]]
    return [
        cell_of(
            "identification",
            {
                **common,
                "trained": steps,
                "public": public if plan == PUBLIC else None,
                "start": draw,
                "defense": spec.format(scale),
            },
        )
        for draw, common, public, trained in every
        for steps in trained
        for scale in grid["scales"]
        for plan, spec in FINGERPRINT_DEFENSES.items()
    ]


def fingerprint_numbers(results: Results) -> Table:
    """Shares of trials, and bits, with intervals over trials and draws of candidates."""
    groups = grouped(select(results, "identification"), _fingerprint_key)
    rows = []
    for key, pairs in groups.items():
        most = log2(key[4])
        bits = [None if b is None else min(max(b, 0.0), most) for b in summarise(pairs, "bits")[:3]]
        rows.append((*key, *right_share(pairs), *bits))
    columns = ("data", "trained", "plan", "level", "candidates", "one_class")
    return Table((*columns, *MEANS, "bits_mean", "bits_low", "bits_high"), rows)


def _fingerprint_key(settings: Settings) -> tuple[Any, ...]:
    name, level = name_and_level(settings["defense"])
    plan = ISOTROPIC
    if name == "optimal-noise":
        plan = LAYER if "layer" in settings["defense"] else PARAMETER
        plan = PUBLIC if settings["public"] else plan
    candidates = settings["candidates"], settings["one_class"]
    return settings["data"], settings["trained"], plan, level, *candidates


def draw_fingerprint(table: Table, stem: Path) -> None:
    """A panel for each data set and state of the model; chance is a dotted line."""
    rows = split(table.where(), "data", "trained")
    size: dict[str, Any] = {"columns": min(2, len(rows) or 1), "width": 3.6, "height": 2.6}
    label = "share of trials with the right one"
    with panels(stem, rows, AXES["noise"], label, **size, legend=5) as shown:
        for axis, (data, trained), mine in shown:
            curves(axis, mine, FINGERPRINT_LOOKS, by="plan")
            axis.axhline(1 / number(mine[0]["candidates"]), color="0.4", ls=":", label="chance")
            state = f"after {trained} steps" if trained else "fresh"
            classes = "one class" if mine[0]["one_class"] else "all classes"
            axis.set_title(f"{data}, {state}, {mine[0]['candidates']} candidates of {classes}")
            axis.set_ylim(-0.03, 1.05)


_CLIP = 0.05  # small enough to clamp entries of the MNIST CNN's gradient; the paper's 1 clamps none
THEOREMS: Mapping[str, tuple[str, str]] = {
    "Theorem 2\nnoise": ("gradient-noise(scale=0.1)", "optimal-noise(scale=0.1, source='private')"),
    "Theorem 3\nclipping and noise": (
        f"clamped-noise(scale=0.1, clip={_CLIP})",
        f"optimal-clamped-noise(scale=0.1, clip={_CLIP}, least=0.0, source='private')",
    ),
    "Theorem 4\npruning": (
        "gradient-pruning(ratio=0.9)",
        "optimal-pruning(ratio=0.9, source='private')",
    ),
}
"""Theorem 3 in the paper's form, which sends clamped entries bare: to hide these, too, has a price
of its own, which is not what the shares compare."""
PLANNED: dict[str, tuple[str, Look]] = {
    "classical": ("classical (isotropic, magnitude)", {"color": RED}),
    "global": ("global: moments of public data", {"color": GREEN}),
    "local": ("local: the batch itself (leaks by its plan)", {"color": BLUE}),
}


def plan_cells(preset: str) -> list[Cell]:
    """What plans keep of the best protection of a batch, at equal utility; three a theorem."""
    grid = PLANS[preset]
    common = {"data": grid["data"], "model": CNN, "size": 16, "probes": grid["probes"], "seed": 0}
    public = {"start": 2000, "size": 16, "batches": grid["public"]}
    return [
        cell_of(
            "plan_quality",
            {**common, "trained": trained, "start": start, "defense": defense, "public": plan},
        )
        for trained in grid["trained"]
        for start in range(0, 16 * grid["batches"], 16)
        for classical, optimal in THEOREMS.values()
        for defense, plan in ((classical, None), (optimal, None), (optimal, public))
    ]


def plan_numbers(results: Results) -> Table:
    """Mean shares with intervals over batches."""

    def key(settings: Settings) -> tuple[int, str, str]:
        plan = "global" if settings["public"] else "local"
        optimal = is_optimal(settings["defense"])
        return settings["trained"], settings["defense"], plan if optimal else "classical"

    cells = grouped(select(results, "plan_quality"), key)
    rows = [(*key, *summarise(pairs, "share")) for key, pairs in cells.items()]
    return Table(("trained", "defense", "plan", *MEANS), rows)


def draw_plans(table: Table, stem: Path) -> None:
    """Bars by theorem and plan; a panel for the fresh model and one for each trained one."""
    label = "share of the best protection\nat equal utility"
    with panels(stem, by_state(table.where()), "", label, width=4.6, height=3.0) as shown:
        for axis, state, rows in shown:
            theorems = {
                theorem: {str(row["plan"]): row for row in rows if row["defense"] in pair}
                for theorem, pair in THEOREMS.items()
            }
            grouped_bars(axis, theorems, PLANNED)
            axis.set(title=state, ylim=(0, 1.05))


PUBLIC_PLANS = presets(
    {
        "data": "mnist",
        "trained": (0, 60, 300),
        "batches": 24,
        "counts": [2, 8, 24],  # of public batches
        "population": 180,  # batches that stand for it
        "strange": 8,  # batches of another kind
        "probes": 16,
    },
    quick={
        "trained": (0,),
        "batches": 4,
        "counts": [2, 4],
        "population": 8,
        "strange": 2,
        "probes": 4,
    },
)
PLAN_LABELS = {
    "limit": "limit: the population's moments",
    "private": "the private batch itself (reveals it)",
    "entry-wise": "public, each entry (Theorem 2)",
    "rows x columns": "public, rows × columns",
    "layer": "public, one level per layer",
    "shrunk": "public, shrunk",
    "model": "model alone",
}


def public_plan_cells(preset: str) -> list[Cell]:
    """One cell for each private batch, with all plans in it."""
    grid = dict(PUBLIC_PLANS[preset])
    axes = {"trained": grid.pop("trained"), "start": range(0, 16 * grid.pop("batches"), 16)}
    return product_cells(
        "public_plans", {**grid, "model": CNN, "size": 16, "public": 2000, "seed": 0}, **axes
    )


def public_plan_numbers(results: Results) -> Table:
    """Mean gains over isotropic noise at equal U2 with intervals over private batches."""
    groups: dict[tuple[int, str, int], dict[Unit, Tensor]] = {}
    for settings, result in select(results, "public_plans"):
        for name, gain in result["gains"].items():
            plan, _, count = name.rpartition("/")
            key = (settings["trained"], plan, int(count))
            unit = (settings["start"], settings["seed"])
            groups.setdefault(key, {})[unit] = torch.tensor([gain], dtype=torch.float64)
    rows = [(*key, *summary(units)) for key, units in sorted(groups.items())]
    return Table(("trained", "plan", "public batches", *MEANS), rows)


def draw_public_plans(table: Table, stem: Path) -> None:
    """Gain against the number of public batches; a panel for each state of the model."""
    label = "gain over isotropic noise\nat equal utility"
    states = by_state(table.where())
    with panels(stem, states, "public batches", label, width=3.6, legend=3) as shown:
        for axis, state, rows in shown:
            axis.set_title(state)
            axis.axhline(1.0, color="0.6", lw=1)
            counted = [row for row in rows if row["public batches"] and row["plan"] in PLAN_LABELS]
            for place, (plan, text) in enumerate(PLAN_LABELS.items()):
                look, mine = OTHERS[place], [row for row in rows if row["plan"] == plan]
                if mine and mine[0] in counted:
                    curve(axis, mine, text, x="public batches", **look)
                elif mine:
                    line = {"color": look["color"], "ls": look["ls"], "label": text}
                    axis.axhline(number(mine[0]["mean"]), **line)
            mark_levels(axis, [row["public batches"] for row in counted])


STUDIES = (
    Study("estimator-share", estimator_cells, estimator_numbers, draw_estimators),
    Study("local-against-global", plan_cells, plan_numbers, draw_plans),
    Study("plan-fingerprint", fingerprint_cells, fingerprint_numbers, draw_fingerprint),
    Study("public-plans", public_plan_cells, public_plan_numbers, draw_public_plans),
)
