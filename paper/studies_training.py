"""Beyond the paper: FedAvg, leakage against loss, utilities, and training under (ε, δ)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from gradveil._drawing import BLUE, GREEN, ORANGE
from gradveil._runner import Cell

from . import figures, grids, numbers
from .study import MEANS, Results, Study, Table, first_batches_first, presets, product_cells

_LOCAL = {"lr": 0.05, "steps": 4, "batch_size": 2}
FEDAVG = presets(
    {
        "grid": replace(grids.AWARE["standard"], starts=grids.every(4, 6), steps=250),
        "local": _LOCAL,
        "rounds": 32,
        "seeds": grids.SEEDS,
    },
    quick={
        "grid": replace(grids.MNIST["quick"], starts=grids.every(4, 4), steps=30),
        "local": {**_LOCAL, "steps": 2},
        "rounds": 6,
        "seeds": (0, 1, 2),
    },
)
FEDAVG_NAMES = ("gradient-pruning", "optimal-pruning", "gradient-noise", "optimal-noise")


def fedavg_cells(preset: str) -> list[Cell]:
    """Attacks on weight changes after local steps, and trainings with the same defenses."""
    grid, local, rounds, seeds = FEDAVG[preset].values()
    scale = round(0.02 * local["lr"] * local["steps"], 12)  # in the size of an update
    levels = {name: 0.9 if numbers.is_pruning(name) else scale for name in FEDAVG_NAMES}
    specs = ["no-defense", *(numbers.defense_spec(name, level) for name, level in levels.items())]
    training = {
        **grids.clients(grid.data, grid.model, 1024, 8, rounds, held_out=512, held_out_start=4352),
        **{f"local_{name}": value for name, value in local.items()},
        "optimizer": "sgd",
        "lr": 1.0,
    }
    return [
        *grid.attack_cells(specs, local=local),
        *product_cells("training", training, seed=seeds, defense=specs),
    ]


def fedavg_numbers(results: Results) -> Table:
    """The attack's error, a blind guess's and the loss at the end, with intervals."""
    rows = [
        (*defense, metric, *numbers.summarise(pairs, value))
        for metric, kind, value in (
            ("mse", "attack", "mse"),
            (figures.BLANK, "attack", figures.BLANK),
            ("loss", "training", "held_out_loss"),
        )
        for defense, pairs in numbers.by_defense(results, kind).items()
    ]
    return Table(("defense", "level", "metric", *MEANS), rows)


def draw_fedavg(table: Table, stem: Path) -> None:
    """A point for each defense: the error to the left, the loss to the right."""
    labels = {"mse": f"{figures.MSE}, matched", "loss": "held-out loss (nats)"}
    rows = {metric: table.where(metric=metric) for metric in labels}
    with figures.panels(stem, rows, width=3.6) as shown:
        for axis, metric, mine in shown:
            names = {
                numbers.label_of(name): {name: own[0]}
                for name, own in figures.split(mine, "defense").items()
            }
            figures.dots(axis, names, figures.LOOKS)
            axis.set_xlabel(labels[metric])
            if metric == "mse":
                figures.blind_guess(
                    axis.axvline, [row["mean"] for row in table.where(metric=figures.BLANK)]
                )


ORDER = (
    ("no-defense", grids.NO_PLAN),
    ("clamped-noise", grids.NO_PLAN),
    ("optimal-clamped-noise", grids.PUBLIC),
    ("optimal-clamped-noise", grids.LAYERS),
    ("optimal-clamped-noise", grids.PRIVATE),
    ("gradient-noise", grids.NO_PLAN),
    ("optimal-noise", grids.PUBLIC),
    ("laplace-noise", grids.NO_PLAN),
    ("gradient-pruning", grids.NO_PLAN),
    ("optimal-pruning", grids.PUBLIC),
    ("optimal-pruning", grids.PRIVATE),
    ("sign-compression", grids.NO_PLAN),
)
"""Of defenses and plans, in tables and legends."""
IDENTIFIED = "identified"
FOUND = (*figures.ATTACKER_TITLES, IDENTIFIED)
"""What is found of MNIST; of photos it is by the attacker who knows the defense alone."""


def frontier_cells(made: Mapping[str, grids.Frontier], preset: str) -> list[Cell]:
    """Trainings, attacks and trials of identification for each defense, plan and level."""
    return first_batches_first(made[preset].cells())


def frontier_numbers(found: tuple[str, ...], results: Results) -> Table:
    """A row for each defense, plan and level: its loss, and what each attacker found."""
    trained, told, attacks = (
        numbers.grouped(numbers.select(results, kind), grids.contender_of)
        for kind in ("training", "identification", "attack")
    )
    attackers = [name for name in found if name != IDENTIFIED]

    def entries(contender: grids.Contender) -> dict[str, Any]:
        runs = trained.get(contender, [])
        by_attacker = numbers.grouped(attacks.get(contender, []), grids.attacker_of)
        errors, psnrs = (
            {name: numbers.summarise(by_attacker.get(name, []), metric) for name in attackers}
            for metric in ("mse", "psnr")
        )
        return {
            **_means("loss", numbers.summary(numbers.final_losses(runs))),
            **{name: numbers.summarise(runs, name)[0] for name in ("held_out_loss", "accuracy")},
            **{k: v for name in attackers for k, v in _means(name, errors[name]).items()},
            **{k: v for name in attackers for k, v in _means(f"{name}_psnr", psnrs[name]).items()},
            figures.BLANK: numbers.summarise(by_attacker.get("aware", []), figures.BLANK)[0],
            **(_told(told.get(contender, [])) if IDENTIFIED in found else {}),
        }

    def order(contender: grids.Contender) -> tuple[int, float]:
        return ORDER.index(contender[:2]), contender[2] or 0.0

    contenders = sorted({**trained, **told, **attacks}, key=order)
    columns = ("defense", "plan", "level", *entries(("", "", None)))
    return Table(columns, [(*each, *entries(each).values()) for each in contenders])


def _means(name: str, entries: tuple[float | None, ...]) -> dict[str, float | None]:
    return dict(zip([f"{name}_{part}" for part in MEANS], entries, strict=True))


def _told(pairs: list[numbers.Pair]) -> dict[str, float | None]:
    """The share of right answers with its interval, the number of trials, and the mean bits."""
    return {
        **_means(IDENTIFIED, numbers.right_share(pairs)),
        "bits": numbers.summarise(pairs, "bits")[0],
    }


def draw_frontier(found: tuple[str, ...], table: Table, stem: Path) -> None:
    """A panel for each attacker: what he finds to the right, the loss upwards."""
    rows, loss = table.where(), "loss at the end of training"
    columns = min(2, len(found))
    size: dict[str, Any] = {"columns": columns, "width": 3.9, "height": 2.9, "legend": 3}
    with figures.panels(stem, dict.fromkeys(found, rows), "", loss, **size) as shown:
        for axis, name, _ in shown:
            told = name == IDENTIFIED
            axis.set_title(
                "told apart from other candidates,\nrest of the batch known"
                if told
                else figures.ATTACKER_TITLES[name]
            )
            axis.set_xlabel("share of trials" if told else f"{figures.MSE}, matched")
            figures.frontier_panel(axis, rows, name, guess=not told)
            if told:
                axis.set_xlim(-0.03, 1.05)
        attacked = [axis for axis, name, _ in shown if name != IDENTIFIED]
        end = max((axis.get_xlim()[1] for axis in attacked), default=1.0)
        for axis in attacked:
            axis.set_xlim(-0.03 * end, end)


_SHAPES = (
    "isotropic",
    "Theorem 2",
    "curvature",
    "adam",
    "total power",
    "steep",
    "layers",
    "private",
)
_SHAPED = {
    "data": "mnist",
    "model": grids.CNN,
    "batch_size": 32,
    "examples": 3200,
    "steps": [20, 100],
    "refresh": 30,
    "public": {"start": 3200, "size": 32, "batches": 8},
    "held_out_start": 4000,
    "held_out": 512,
}
PREDICTION = presets(
    {
        "common": _SHAPED,
        "shapes": _SHAPES,
        # by optimizer: amounts that neither do nothing nor end in divergence
        "scales": {
            "sgd": (0.05, 0.1, 0.2),
            "momentum": (0.03, 0.05, 0.1),
            "adam": (0.01, 0.03, 0.1),
        },
        "seeds": (0, 1),
    },
    quick={
        "common": {
            **_SHAPED,
            "batch_size": 8,
            "steps": [5, 10],
            "public": {"start": 3200, "size": 8, "batches": 4},
            "held_out": 128,
        },
        "shapes": ("isotropic", "Theorem 2", "curvature", "total power"),
        "scales": {"sgd": (0.1, 0.3), "adam": (0.01, 0.1)},
        "seeds": (0,),
    },
)
_RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 1e-3}  # tuned coarsely without a defense
COSTS = ("U2", "total power", "curvature", "Adam's step")
COMPARED: dict[str, tuple[str, figures.Look]] = {
    "all": ("all amounts of noise", figures.OTHERS[0]),
    "equal bound": ("at equal trace bound", figures.OTHERS[1]),
    "learned": ("the same, runs that learned nothing left out", figures.OTHERS[2]),
}


def prediction_cells(preset: str) -> list[Cell]:
    """Trainings under noise of every shape, amount, optimizer and seed."""
    grid = PREDICTION[preset]
    return [
        cell
        for seed in grid["seeds"]
        for optimizer, scales in grid["scales"].items()
        for cell in product_cells(
            "training_prediction",
            {**grid["common"], "seed": seed, "optimizer": optimizer, "lr": _RATES[optimizer]},
            scale=scales,
            shape=grid["shapes"],
        )
    ]


def prediction_numbers(results: Results) -> Table:
    """Spearman's correlation of utilities before training with the loss after it.

    Means over groups of runs of one model, with intervals. Runs differ in the shape and the amount
    of their noise. More noise is worse by every utility; what a choice between defenses needs is
    the order of shapes at one trace bound.
    """
    rows = []
    by_optimizer = numbers.grouped(
        numbers.select(results, "training_prediction"), lambda s: str(s["optimizer"])
    )
    for optimizer, pairs in by_optimizer.items():
        for place, steps in enumerate(pairs[0][0]["steps"]):
            learned = [pair for pair in pairs if _loss(pair[1], place) < numbers.CHANCE]
            for compared in COMPARED:
                mine = learned if compared == "learned" else pairs
                key = itemgetter("seed") if compared == "all" else itemgetter("seed", "scale")
                large = [own for own in numbers.grouped(mine, key).values() if len(own) > 2]
                for cost in COSTS:
                    found = numbers.mean_correlation([_runs(group, cost, place) for group in large])
                    rows.append((optimizer, steps, compared, cost, *found, len(mine)))
    return Table(("optimizer", "steps", "compared", "utility", *MEANS), rows)


def _runs(pairs: list[numbers.Pair], cost: str, place: int) -> numbers.Runs:
    costs = torch.tensor([result["costs"][cost] for _, result in pairs])
    losses = torch.tensor([_loss(result, place) for _, result in pairs])
    return numbers.Runs(costs, losses, [str(settings["shape"]) for settings, _ in pairs])


def _loss(result: Mapping[str, Any], place: int) -> float:
    """Infinite where training diverged: worse than all others."""
    loss = result["losses"][place]
    return inf if loss is None or loss != loss else float(loss)


def draw_prediction(table: Table, stem: Path) -> None:
    """A panel for each optimizer: bars by utility, over all runs and over comparable ones."""
    rows, label = figures.split(table.where(), "optimizer"), "rank correlation with the loss"
    with figures.panels(stem, rows, "", label, width=3.0) as shown:
        for axis, optimizer, own in shown:
            last = max(numbers.number(row["steps"]) for row in own)
            costs = {
                cost.replace(" ", "\n"): {
                    str(row["compared"]): row
                    for row in own
                    if (row["steps"], row["utility"]) == (last, cost)
                }
                for cost in COSTS
            }
            figures.grouped_bars(axis, costs, COMPARED)
            axis.set(title=f"{optimizer}, after {last:g} steps", ylim=(-1, 1.05))


PLAIN, ISOTROPIC = "plain", "isotropic"
WAYS: dict[str, tuple[str, figures.Look]] = {
    ISOTROPIC: ("isotropic noise (DP-SGD)", {"color": BLUE, "marker": "o", "ls": "-"}),
    "shaped": (
        "noise shaped by public examples",
        {"color": GREEN, "marker": "D", "ls": "--"},
    ),
    "opacus": ("Opacus", {"color": ORANGE, "marker": "s", "ls": ":"}),
    PLAIN: ("not private", {"color": "0.4", "ls": "-."}),
}
"""To a private gradient, and the plain one."""
_PRIVATE = {
    "data": "mnist",
    "model": grids.CNN,
    "delta": 1e-5,
    "clip": 3.0,  # it and the rate were tuned coarsely for isotropic noise at ε = 3
    "batch_size": 128,
    "steps": 120,
    "examples": 3200,
    "lr": 2e-3,
    "public": {"start": 3200, "count": 256, "refresh": 20},
    "held_out_start": 4000,
    "held_out": 1000,
}
PRIVATE_TRAINING = presets(
    {"common": _PRIVATE, "epsilons": (1.0, 3.0, 8.0), "seeds": grids.SEEDS},
    quick={
        "common": {
            **_PRIVATE,
            "batch_size": 32,
            "steps": 5,
            "examples": 640,
            "public": {"start": 3200, "count": 32, "refresh": 5},
            "held_out": 128,
        },
        "epsilons": (2.0, 8.0),
        "seeds": (0, 1),
    },
)


def private_cells(preset: str) -> list[Cell]:
    """Every way and ε, and a training without privacy; the first seed of all comes first."""
    common, epsilons, seeds = PRIVATE_TRAINING[preset].values()
    private = [way for way in WAYS if way != PLAIN]
    plain = {**common, "way": PLAIN, "epsilon": None}
    cells = [
        *product_cells("private_training", plain, seed=seeds),
        *product_cells("private_training", common, seed=seeds, epsilon=epsilons, way=private),
    ]
    return first_batches_first(cells)


def private_numbers(results: Results) -> Table:
    """Loss and accuracy at equal ε, means over seeds; differences of losses are paired by seed."""
    groups = numbers.grouped(
        numbers.select(results, "private_training"), lambda s: (s["way"], s["epsilon"])
    )
    rows = []
    for way, epsilon in numbers.in_order(groups):
        pairs, base = groups[way, epsilon], groups.get((ISOTROPIC, epsilon), [])
        first = pairs[0][1]
        known = (way, epsilon, first["noise_multiplier"], first["epsilon_opacus"])
        rows += [(*known, name, *numbers.summarise(pairs, name)) for name in ("accuracy", "loss")]
        ours, theirs = numbers.units_of(pairs, "loss"), numbers.units_of(base, "loss")
        paired = {unit: ours[unit] - theirs[unit] for unit in ours if unit in theirs}
        if way not in (PLAIN, ISOTROPIC) and paired:
            rows.append((*known, "difference", *numbers.summary(paired)))
    columns = ("way", "level", "noise_multiplier", "epsilon_opacus")
    return Table((*columns, "metric", *MEANS), rows)


def draw_private(table: Table, stem: Path) -> None:
    """Accuracy, loss, and differences of losses, against ε."""
    labels = {
        "accuracy": "held-out accuracy",
        "loss": "held-out loss (nats)",
        "difference": "loss less that of\nisotropic noise (nats)",
    }
    rows = {metric: table.where(metric=metric) for metric in labels}
    with figures.panels(stem, rows, "ε (smaller protects more)", width=2.8) as shown:
        for axis, metric, mine in shown:
            figures.curves(axis, mine, WAYS, by="way")
            axis.set_ylabel(labels[metric])
            if metric == "difference":
                axis.axhline(0.0, color=BLUE, lw=1)


STUDIES = (
    Study("fedavg", fedavg_cells, fedavg_numbers, draw_fedavg),
    Study("utility-predicts-training", prediction_cells, prediction_numbers, draw_prediction),
    Study("private-training", private_cells, private_numbers, draw_private),
    Study(
        "frontier",
        partial(frontier_cells, grids.FRONTIER),
        partial(frontier_numbers, FOUND),
        partial(draw_frontier, FOUND),
    ),
    Study(
        "cifar-frontier",
        partial(frontier_cells, grids.PHOTO_FRONTIER),
        partial(frontier_numbers, ("aware",)),
        partial(draw_frontier, ("aware",)),
    ),
)
