"""The figures and tables of the paper."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradveil._runner import Cell

from . import figures, numbers
from .grids import CIFAR, CURVES, FAMILIES, MNIST, Grid
from .study import MEANS, Results, Study, Table, cell_of

GRIDS = {"mnist": MNIST, "cifar": CIFAR}
ALSO = "no-defense"


def reconstruction_cells(data: str, family: str, preset: str) -> list[Cell]:
    """Each defense, level, batch and seed, and no defense."""
    grid = GRIDS[data][preset]
    return grid.attack_cells([ALSO, *grid.specs(family, large=True)])


def reconstruction_numbers(results: Results) -> Table:
    """Errors place by place, as in the paper, and of matched images; and those of a blind guess."""
    scores = ("unmatched_mse", "unmatched_psnr", "mse", "psnr", figures.BLANK)
    cells = numbers.by_defense(results, "attack")
    return numbers.score_table(("defense", "level"), cells, scores)


def draw_reconstruction(family: str, table: Table, stem: Path) -> None:
    """MSE to the left, PSNR to the right."""
    labels = {"unmatched_mse": figures.MSE, "unmatched_psnr": figures.PSNR}
    rows = {metric: table.where(metric=metric) for metric in labels}
    looks = figures.looks_of([ALSO, *FAMILIES[family]])
    for axis, metric, mine in figures.panels(stem, rows, figures.AXES[family], height=3.1):
        figures.curves(axis, mine, looks, percent=family == "pruning")
        axis.set_ylabel(labels[metric])
        if metric == "unmatched_mse":
            figures.blind_guess(axis.axhline, table.column("mean", metric=figures.BLANK))


RUNS: dict[str, tuple[numbers.Defended, ...]] = {
    "pruning": (("gradient-pruning", 0.8), ("gradient-pruning", 0.9), ("optimal-pruning", 0.8)),
    "noise": (("clamped-noise", 0.1), ("optimal-clamped-noise", 0.1)),
}


def training_cells(family: str, preset: str) -> list[Cell]:
    """A CNN that four clients train on MNIST, with each defense and seed."""
    return curve_cells(preset, RUNS[family], CURVES[preset]["seeds"])


def curve_cells(
    preset: str, defenses: Iterable[numbers.Defended], seeds: Iterable[int]
) -> list[Cell]:
    """Each defense with each seed, at the paper's learning rate for its kind."""
    estimator, training = CURVES[preset]["estimator"], CURVES[preset]["training"]
    specs = [numbers.defense_spec(name, level, estimator) for name, level in defenses]
    rates = {spec: 5e-4 if numbers.is_pruning(spec) else 1e-3 for spec in specs}
    return [
        cell_of("training", {**training, "lr": rates[d], "defense": d, "seed": seed})
        for seed in seeds
        for d in specs
    ]


def training_numbers(results: Results) -> Table:
    """The loss of each round, the mean of the last 8, with intervals over seeds."""
    losses = {
        defense: {(0, s["seed"]): r["losses"] for s, r in pairs}
        for defense, pairs in numbers.by_defense(results, "training").items()
    }
    return Table(("defense", "level", "round", *MEANS), smoothed_rows(losses, 8))


def smoothed_rows(
    curves: Mapping[tuple[Any, ...], Mapping[numbers.Unit, list[float]]], window: int
) -> list[tuple[Any, ...]]:
    """For each key and round, the mean over seeds of the means of the last values."""
    rows = []
    for key, units in curves.items():
        smooth = {unit: smoothed(values, window) for unit, values in units.items()}
        for place in range(min(len(values) for values in smooth.values())):
            here = {unit: values[place : place + 1] for unit, values in smooth.items()}
            rows.append((*key, place + 1, *numbers.summary(here)))
    return rows


def smoothed(values: Sequence[float], window: int) -> Tensor:
    """The mean of the last `window` values, at each place."""
    row = torch.tensor(values, dtype=torch.float64)
    means = [row[max(0, i + 1 - window) : i + 1].mean() for i in range(len(row))]
    return torch.stack(means)


def draw_training(table: Table, stem: Path) -> None:
    """A curve with a band for each defense."""
    label = "training loss (nats, mean of the last 8)"
    for axis, _, rows in figures.panels(stem, table.where(), "round", label, width=4.4, legend=2):
        groups = figures.split(rows, "defense", "level").items()
        for ((name, level), mine), other in zip(groups, figures.OTHERS, strict=False):
            look = {"color": figures.LOOKS[name]["color"], "ls": other["ls"]}
            figures.round_curve(axis, mine, numbers.level_text(name, level), look)


def tradeoff_cells(data: str, family: str, preset: str) -> list[Cell]:
    """The attacks of the reconstruction study, and short trainings with the same defenses."""
    grid = GRIDS[data][preset]
    specs = grid.specs(family)
    return [*grid.attack_cells(specs), *grid.short_cells(specs)]


def tradeoff_numbers(results: Results) -> Table:
    """The error and the loss after 5 steps on one batch of each defense and level."""
    attacks, losses = (numbers.by_defense(results, kind) for kind in ("attack", "short_training"))
    rows = [
        (
            *defense,
            *numbers.summarise(attacks[defense], "unmatched_mse"),
            *numbers.summarise(attacks[defense], "mse"),
            *numbers.summarise_loss(losses[defense]),
            numbers.summarise(attacks[defense], figures.BLANK)[0],
        )
        for defense in numbers.in_order(attacks)
        if defense in losses
    ]
    means = [f"{name}_{part}" for name in ("error", "matched", "loss") for part in MEANS]
    return Table(("defense", "level", *means, figures.BLANK), rows)


def draw_tradeoff(data: str, family: str, table: Table, stem: Path) -> None:
    """Error to the right, loss upwards, so that the lower right corner is best; with levels."""
    label = f"loss after 5 steps on {64 if data == 'mnist' else 8} samples (nats)"
    size: dict[str, Any] = {"width": 4.4, "height": 3.4, "legend": 3}
    for axis, _, rows in figures.panels(stem, table.where(), figures.MSE, label, **size):
        figures.frontier_panel(axis, [{**row, "plan": ""} for row in rows], "error")
        for row in rows:
            above = row["defense"] == FAMILIES[family][1]
            level = numbers.number(row["level"])
            axis.annotate(
                f"{level * 100:g}%" if family == "pruning" else f"{level:g}",
                (numbers.number(row["error_mean"]), numbers.number(row["loss_mean"])),
                xytext=(4, 3) if above else (-4, -3),
                textcoords="offset points",
                ha="left" if above else "right",
                va="bottom" if above else "top",
                fontsize=6.5,
                color=figures.LOOKS[str(row["defense"])]["color"],
            )


def utility_cells(preset: str) -> list[Cell]:
    """Short trainings on 8 photos at small and at large scales."""
    grid = CIFAR[preset]
    return grid.short_cells(grid.specs("noise", large=True))


def utility_numbers(results: Results) -> Table:
    """The mean loss of each defense and scale with intervals over seeds."""
    cells = numbers.by_defense(results, "short_training")
    rows = [
        (*defense, *numbers.summarise_loss(cells[defense])) for defense in numbers.in_order(cells)
    ]
    return Table(("defense", "level", *MEANS), rows)


def draw_utility(table: Table, stem: Path) -> None:
    """One curve for each defense."""
    labels = figures.AXES["noise"], "loss after 5 steps on 8 samples (nats)"
    for axis, _, rows in figures.panels(stem, table.where(), *labels, width=4.0):
        figures.curves(axis, rows, figures.looks_of(FAMILIES["noise"]))


IMAGES: dict[str, tuple[tuple[str, float], ...]] = {
    "pruning": (("gradient-pruning", 0.9), ("optimal-pruning", 0.8)),
    "noise": (("clamped-noise", 0.05), ("optimal-clamped-noise", 0.1)),
}
"""Of which reconstructions are shown."""


def image_cells(data: str, family: str, preset: str) -> list[Cell]:
    """The first four images: MNIST's in one batch, CIFAR-10's two at a time."""
    grid: Grid = GRIDS[data][preset]
    size = 4 if data == "mnist" else grid.size
    grid = replace(grid, size=size, starts=tuple(range(0, 4, size)), noise_seeds=())
    specs = [numbers.defense_spec(name, level, grid.estimator) for name, level in IMAGES[family]]
    return grid.attack_cells(specs)


def image_numbers(results: Results) -> Table:
    """Each image's errors, matched as the pictures are; the pixels as arrays.

    Only the images that every defense has: rows show the same one below another. Cells without
    pixels, as `cells.csv` has them, show nothing.
    """
    rows: list[tuple[str | float | None, ...]] = []
    arrays: dict[str, Tensor] = {}
    cells = numbers.by_defense({c: r for c, r in results.items() if "images" in r}, "attack")
    starts = [{s["start"] for s, _ in pairs} for pairs in cells.values()]
    shown = sorted(set.intersection(*starts)) if starts else []
    for (name, level), pairs in cells.items() if shown else ():
        by_start = {s["start"]: r for s, r in pairs}
        attacked = [by_start[start] for start in shown]
        arrays["originals"] = torch.cat([r["originals"] for r in attacked])
        arrays[numbers.level_text(name, level)] = torch.cat(
            [r["images"][torch.tensor(r["assignment"])] for r in attacked]
        )
        errors = [(m, p) for r in attacked for m, p in zip(r["mse"], r["psnr"], strict=True)]
        rows += [(name, level, place, m, p) for place, (m, p) in enumerate(errors)]
    return Table(("defense", "level", "image", "mse", "psnr"), rows, arrays)


def draw_pictures(table: Table, stem: Path) -> None:
    """The originals above, one row for each defense below."""
    notes = {
        numbers.level_text(name, level): [
            f"MSE {numbers.number(r['mse']):.2f}, {numbers.number(r['psnr']):.1f} dB" for r in mine
        ]
        for (name, level), mine in figures.split(table.where(), "defense", "level").items()
    }
    lines = [
        (textwrap.fill(label, 20), images, notes.get(label, [""] * len(images)))
        for label, images in table.arrays.items()
    ]
    figures.draw_images(stem, lines)


def layer_noise_cells(preset: str) -> list[Cell]:
    """The training runs with optimal noise of scale 0.1."""
    seeds = (*CURVES[preset]["seeds"], *CURVES[preset]["layer seeds"])
    return curve_cells(preset, [("optimal-clamped-noise", 0.1)], seeds)


def layer_noise_numbers(results: Results) -> Table:
    """The mean standard deviation by layer and round, of the last 10, with intervals over seeds."""
    levels: dict[tuple[str], dict[numbers.Unit, list[float]]] = {}
    for settings, result in numbers.select(results, "training"):
        for layer, own in result["levels"].items():
            levels.setdefault((layer,), {})[(0, settings["seed"])] = own
    return Table(("layer", "round", *MEANS), smoothed_rows(levels, 10))


def draw_layer_noise(table: Table, stem: Path) -> None:
    """Weights to the left, biases to the right."""
    rows = {
        kind: [row for row in table.where() if str(row["layer"]).rpartition(".")[2] == kind]
        for kind in ("weight", "bias")
    }
    label = "mean noise std (mean of the last 10)"
    for axis, kind, own in figures.panels(stem, rows, "round", label, height=3.0):
        for place, (layer, mine) in enumerate(figures.split(own, "layer").items()):
            figures.round_curve(
                axis, mine, layer.removesuffix(f".{kind}"), figures.OTHERS[place % 8]
            )
        axis.set_title("weights" if kind == "weight" else "biases")
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")


def layer_table_cells(preset: str) -> list[Cell]:
    """The model alone."""
    grid = MNIST[preset]
    return [cell_of("layer_sizes", {"data": grid.data, "model": grid.model})]


def layer_table_numbers(results: Results) -> Table:
    """The number of parameters of each layer of the MNIST CNN, and their sum."""
    sizes = [row for _, result in numbers.select(results, "layer_sizes") for row in result["sizes"]]
    rows = [(str(name), int(count)) for name, count in sizes]
    if rows:
        rows.append(("all", sum(count for _, count in rows)))
    return Table(("layer", "parameters"), rows)


def draw_layer_table(table: Table, stem: Path) -> None:
    """The table itself."""
    with figures.figure(stem, height=2.6) as (_, [axis]):
        axis.axis("off")
        text = [[str(layer), f"{int(numbers.number(count)):,}"] for layer, count in table.rows]
        if text:
            axis.table(text, colLabels=["layer", "parameters"], loc="center")


def _reconstruction(name: str) -> Study:
    data, family = name.split("-")[:2]
    cells, draw = partial(reconstruction_cells, data, family), partial(draw_reconstruction, family)
    return Study(name, cells, reconstruction_numbers, draw)


def _training(name: str) -> Study:
    cells = partial(training_cells, name.split("-")[1])
    return Study(name, cells, training_numbers, draw_training)


def _tradeoff(name: str) -> Study:
    data, family = name.split("-")[:2]
    cells, draw = partial(tradeoff_cells, data, family), partial(draw_tradeoff, data, family)
    return Study(name, cells, tradeoff_numbers, draw)


def _images(name: str) -> Study:
    cells = partial(image_cells, *name.split("-")[:2])
    return Study(name, cells, image_numbers, draw_pictures, needs_arrays=True)


STUDIES: tuple[Study, ...] = (
    _reconstruction("mnist-pruning"),  # Figure 2
    _training("mnist-pruning-training"),  # 3
    _tradeoff("mnist-pruning-tradeoff"),  # 4
    _reconstruction("mnist-noise"),  # 5
    _training("mnist-noise-training"),  # 6
    _tradeoff("mnist-noise-tradeoff"),  # 7
    _images("mnist-noise-images"),  # 8
    _tradeoff("cifar-pruning-tradeoff"),  # 9
    _images("cifar-pruning-images"),  # 10
    _tradeoff("cifar-noise-tradeoff"),  # 11
    Study("cifar-noise-utility", utility_cells, utility_numbers, draw_utility),  # 12, appendix
    _reconstruction("cifar-noise-error"),  # 13
    Study("mnist-layer-noise", layer_noise_cells, layer_noise_numbers, draw_layer_noise),  # 14
    Study("mnist-layer-table", layer_table_cells, layer_table_numbers, draw_layer_table),  # Table 1
)
