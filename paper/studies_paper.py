"""The figures and tables of the paper."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from gradveil._runner import Cell

from .figures import (
    BLANK,
    COLOURS,
    DASHES,
    LINES,
    MARKERS,
    MSE,
    OTHERS,
    PSNR,
    RATIO,
    SCALE,
    Note,
    Row,
    bars,
    blank_errors,
    blind_guess,
    defense_curves,
    draw_images,
    figure,
    label_points,
    legend_below,
    no_cells,
    one_scale,
    round_curve,
)
from .grids import CIFAR, CURVES, MNIST, NOISE, PRUNING, Grid
from .numbers import (
    defense_spec,
    grouped,
    label_of,
    level_text,
    name_and_level,
    number,
    select,
    summarise,
    summarise_loss,
    summary,
)
from .study import MEANS, Results, Study, Table, cell_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRIDS = {"MNIST": MNIST, "CIFAR-10": CIFAR}
NAMES = {"pruning": PRUNING, "noise": NOISE}
AXES = {"pruning": RATIO, "noise": SCALE}
PAIRS = {family: " and ".join(map(label_of, names)) for family, names in NAMES.items()}


def levels(grid: Grid, family: str, large: bool = False) -> tuple[float, ...]:
    """The ratios or the scales of a grid, with the appendix's larger scales if asked for."""
    if family == "pruning":
        return grid.ratios
    return (*grid.scales, *grid.large_scales) if large else grid.scales


IMAGES = {
    "pruning": (("gradient-pruning", 0.9), ("optimal-pruning", 0.8)),
    "noise": (("clamped-noise", 0.05), ("optimal-clamped-noise", 0.1)),
}
"""Of which reconstructions are shown."""


@dataclass(frozen=True)
class PairStudy(Study):
    """A figure of the paper about a classical defense and its optimal form, on one data set."""

    data: str = "MNIST"
    family: str = "noise"
    shows: ClassVar[str]

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.data}: {self.shows} {PAIRS[self.family]}"


METRICS = ("unmatched_mse", "unmatched_psnr", "mse", "psnr", BLANK)
"""Compared place by place, as in the paper, and after matching images; and a blind guess."""


@dataclass(frozen=True)
class ReconstructionStudy(PairStudy):
    """MSE and PSNR of Inverting Gradients for a pair of defenses at several levels."""

    shows = "reconstruction error,"

    def cells(self, preset: str) -> list[Cell]:
        """Each defense, level, batch and seed, and no defense."""
        grid = GRIDS[self.data][preset]
        steps = levels(grid, self.family, large=True)
        return grid.attack_cells(["no-defense", *grid.levels(NAMES[self.family], steps)])

    def numbers(self, results: Results) -> Table:
        """Means over batches, seeds and images with intervals."""
        columns = ("defense", "level", "metric")
        cells = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        rows = [
            (*defense, metric, *summarise(cells[defense], metric))
            for metric in METRICS
            for defense in sorted(cells, key=lambda d: (d[0], d[1] or 0.0))
        ]
        return Table((*columns, *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """MSE to the left, PSNR to the right."""
        labels = {"unmatched_mse": MSE, "unmatched_psnr": PSNR}
        with figure(path_stem, columns=2, height=3.1) as (made, axes):
            for axis, (metric, label) in zip(axes, labels.items(), strict=True):
                rows = [row for row in table.as_dicts() if row["metric"] == metric]
                percent = self.family == "pruning"
                defense_curves(axis, rows, label, AXES[self.family], percent)
            blanks = blank_errors(table)
            blind_guess(axes[0].axhline, blanks)
            legend_below(made, axes)


TRAINING_WINDOW = 8

Defense = tuple[str, float | None]
RUNS: dict[str, tuple[Defense, ...]] = {
    "pruning": (("gradient-pruning", 0.8), ("gradient-pruning", 0.9), ("optimal-pruning", 0.8)),
    "noise": (("clamped-noise", 0.1), ("optimal-clamped-noise", 0.1)),
}


@dataclass(frozen=True)
class TrainingStudy(PairStudy):
    """The loss of a CNN that four clients train on MNIST, smoothed over 8 rounds."""

    shows = "training with"

    def cells(self, preset: str) -> list[Cell]:
        """Each defense and seed."""
        return CURVES[preset].cells(RUNS[self.family])

    def numbers(self, results: Results) -> Table:
        """The smoothed loss of each round, with intervals over seeds."""
        columns = ("defense", "level", "round")
        rows: list[tuple[str | float | None, ...]] = []
        cells = grouped(select(results, "training"), lambda s: name_and_level(s["defense"]))
        for defense, pairs in cells.items():
            curves = {(0, s["seed"]): smoothed(r["losses"], TRAINING_WINDOW) for s, r in pairs}
            for place in range(min(len(curve) for curve in curves.values())):
                units = {unit: curve[place : place + 1] for unit, curve in curves.items()}
                rows.append((*defense, place + 1, *summary(units)))
        return Table((*columns, *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """A curve with a band for each defense."""
        with figure(path_stem, width=4.4, height=3.0) as (_, [axis]):
            rows = table.as_dicts()
            shown = dict.fromkeys((str(r["defense"]), r["level"]) for r in rows)
            for (name, level), dash in zip(shown, DASHES, strict=False):
                mine = [r for r in rows if (r["defense"], r["level"]) == (name, level)]
                label = level_text(name, None if level is None else float(level))
                round_curve(axis, mine, label, color=COLOURS[name], ls=dash)
            axis.set(
                xlabel="round", ylabel=f"training loss (nats, mean of the last {TRAINING_WINDOW})"
            )
            if rows:
                axis.legend()
            else:
                no_cells(axis)


def smoothed(values: list[float], window: int) -> torch.Tensor:
    """The mean of the last `window` values, at each place."""
    row = torch.tensor(values, dtype=torch.float64)
    means = [row[max(0, i + 1 - window) : i + 1].mean() for i in range(len(row))]
    return torch.stack(means)


SAMPLES = {"MNIST": 64, "CIFAR-10": 8}


@dataclass(frozen=True)
class TradeoffStudy(PairStudy):
    """The loss after 5 steps on one batch against the attack's MSE, one point for each level."""

    shows = "privacy against utility,"

    def cells(self, preset: str) -> list[Cell]:
        """The attacks of the reconstruction study, and short trainings with the same defenses."""
        grid = GRIDS[self.data][preset]
        specs = grid.levels(NAMES[self.family], levels(grid, self.family))
        return [*grid.attack_cells(specs), *grid.short_cells(specs)]

    def numbers(self, results: Results) -> Table:
        """Both means of each defense and level with intervals."""
        attacks = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        losses = grouped(select(results, "short_training"), lambda s: name_and_level(s["defense"]))
        rows = [
            (
                *defense,
                *summarise(attacks[defense], "unmatched_mse"),
                *summarise(attacks[defense], "mse"),
                *summarise_loss(losses[defense]),
                summarise(attacks[defense], BLANK)[0],
            )
            for defense in sorted(attacks, key=lambda d: (d[0], d[1] or 0.0))
            if defense in losses
        ]
        means = [f"{name}_{part}" for name in ("error", "matched", "loss") for part in MEANS]
        return Table(("defense", "level", *means, BLANK), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Error to the right, loss upwards: the lower right corner is best."""
        with figure(path_stem, width=4.4, height=3.4) as (made, [axis]):
            rows = table.as_dicts()
            if not rows:
                no_cells(axis)
            for name in dict.fromkeys(str(row["defense"]) for row in rows):
                self._points(axis, [row for row in rows if row["defense"] == name], name)
            blind_guess(axis.axvline, [row[BLANK] for row in rows])
            samples = SAMPLES[self.data]
            axis.set(xlabel=MSE, ylabel=f"loss after 5 steps on {samples} samples (nats)")
            if rows:
                label_points(axis, [self._note(row) for row in rows])
                legend_below(made, [axis], columns=3)

    def _points(self, axis: "Axes", rows: list[Row], name: str) -> None:
        x, y = ([number(row[f"{part}_mean"]) for row in rows] for part in ("error", "loss"))
        axis.errorbar(
            x,
            y,
            xerr=bars(rows, "error"),
            yerr=bars(rows, "loss"),
            fmt="none",
            ecolor=COLOURS[name],
            elinewidth=0.7,
            alpha=0.6,
        )
        axis.plot(x, y, color=COLOURS[name], ls=LINES[name], lw=0.8, alpha=0.7)
        sizes = [18.0 + 70.0 * place / max(1, len(rows) - 1) for place in range(len(rows))]
        axis.scatter(
            x,
            y,
            s=sizes,
            color=COLOURS[name],
            marker=MARKERS[name],
            label=label_of(name),
            edgecolors="white",
            linewidths=0.5,
            zorder=3,
        )

    def _note(self, row: Row) -> Note:
        level = number(row["level"])
        text = f"{level * 100:g}%" if self.family == "pruning" else f"{level:g}"
        place = number(row["error_mean"]), number(row["loss_mean"])
        return Note(*place, text, COLOURS[str(row["defense"])])


@dataclass(frozen=True)
class UtilityStudy(PairStudy):
    """The loss after 5 steps on 8 images, for small and for large scales."""

    shows = "training loss,"

    def cells(self, preset: str) -> list[Cell]:
        """Short trainings at all scales."""
        grid = CIFAR[preset]
        return grid.short_cells(grid.levels(NOISE, levels(grid, "noise", large=True)))

    def numbers(self, results: Results) -> Table:
        """The mean loss of each defense and scale with intervals over seeds."""
        cells = grouped(select(results, "short_training"), lambda s: name_and_level(s["defense"]))
        rows = [
            (*defense, *summarise_loss(cells[defense]))
            for defense in sorted(cells, key=lambda d: (d[0], d[1] or 0.0))
        ]
        return Table(("defense", "level", *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """One curve for each defense."""
        with figure(path_stem, width=4.0, height=2.8) as (made, [axis]):
            label = "loss after 5 steps on 8 samples (nats)"
            defense_curves(axis, table.as_dicts(), label, SCALE, percent=False)
            legend_below(made, [axis])


SHOWN = 4

LINE = 20
"""Letters that fit beside a row of pictures."""


@dataclass(frozen=True)
class ImagesStudy(PairStudy):
    """Four images: the originals and the reconstructions under two defenses."""

    needs_arrays = True

    @property
    def title(self) -> str:
        """What it shows."""
        first, second = (level_text(name, level) for name, level in IMAGES[self.family])
        return f"{self.data}: images rebuilt from {first} and {second}"

    def cells(self, preset: str) -> list[Cell]:
        """The first four images: MNIST's in one batch, CIFAR-10's two at a time."""
        grid = first_images(GRIDS[self.data][preset], self.data)
        specs = [defense_spec(name, level, grid.estimator) for name, level in IMAGES[self.family]]
        return grid.attack_cells(specs)

    def numbers(self, results: Results) -> Table:
        """Each image's errors, matched as the pictures are; the pixels as arrays.

        Only the images that every defense has: rows show the same one below another. Cells without
        pixels, as `cells.csv` has them, show nothing.
        """
        results = {cell: result for cell, result in results.items() if "images" in result}
        rows: list[tuple[str | float | None, ...]] = []
        arrays: dict[str, Tensor] = {}
        cells = grouped(select(results, "attack"), lambda s: name_and_level(s["defense"]))
        starts = [{s["start"] for s, _ in pairs} for pairs in cells.values()]
        shown = sorted(set.intersection(*starts)) if starts else []
        for (name, level), pairs in cells.items() if shown else ():
            by_start = {s["start"]: r for s, r in pairs}
            attacked = [by_start[start] for start in shown]
            arrays["originals"] = torch.cat([r["originals"] for r in attacked])
            arrays[defense_spec(name, level)] = torch.cat(
                [r["images"][torch.tensor(r["assignment"])] for r in attacked]
            )
            errors = [(m, p) for r in attacked for m, p in zip(r["mse"], r["psnr"], strict=True)]
            rows += [(name, level, place, m, p) for place, (m, p) in enumerate(errors)]
        columns = ("defense", "level", "image", "mse", "psnr")
        return Table(columns, rows, arrays)

    def draw(self, table: Table, path_stem: Path) -> None:
        """The originals above, one row for each defense below."""
        rows = table.as_dicts()
        lines = []
        if "originals" in table.arrays:
            originals = table.arrays["originals"]
            lines.append(("originals", originals, [""] * len(originals)))
        for name, level in IMAGES[self.family]:
            images: Mapping[str, Tensor] = table.arrays
            key = defense_spec(name, level)
            if key in images:
                mine = [r for r in rows if (r["defense"], r["level"]) == (name, level)]
                notes = [f"MSE {number(r['mse']):.2f}, {number(r['psnr']):.1f} dB" for r in mine]
                label = textwrap.fill(level_text(name, level), LINE)
                lines.append((label, images[key], notes))
        draw_images(path_stem, lines, width=1.25)


def first_images(grid: Grid, data: str) -> Grid:
    """The grid with the first four images alone and one seed."""
    size = SHOWN if data == "MNIST" else grid.size
    starts = tuple(range(0, SHOWN, size))
    return replace(grid, size=size, starts=starts, seeds=grid.seeds[:1], noise_seeds=())


LAYERS_WINDOW = 10
DEFENSE = ("optimal-clamped-noise", 0.1)


@dataclass(frozen=True)
class LayerNoiseStudy(Study):
    """The average optimal noise of each layer, smoothed over 10 rounds."""

    name: str = "mnist-layer-noise"
    title = "MNIST: average optimal noise in each layer through training"
    figure: str = "Figure 14 (appendix)"

    def cells(self, preset: str) -> list[Cell]:
        """The training runs with optimal noise of scale 0.1."""
        curves = CURVES[preset]
        return curves.cells([DEFENSE], more=curves.layer_seeds)

    def numbers(self, results: Results) -> Table:
        """The mean standard deviation by layer and round, with intervals over seeds."""
        curves: dict[str, dict[tuple[int, int], list[float]]] = {}
        for settings, result in select(results, "training"):
            for layer, levels in result["levels"].items():
                curves.setdefault(layer, {})[(0, settings["seed"])] = levels
        rows: list[tuple[str | float | None, ...]] = []
        for layer, units in curves.items():
            smooth = {unit: smoothed(levels, LAYERS_WINDOW) for unit, levels in units.items()}
            for place in range(min(len(curve) for curve in smooth.values())):
                here = {unit: curve[place : place + 1] for unit, curve in smooth.items()}
                rows.append((layer, place + 1, *summary(here)))
        return Table(("layer", "round", *MEANS), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """Weights to the left, biases to the right."""
        rows = table.as_dicts()
        with figure(path_stem, columns=2, height=3.0) as (made, axes):
            for axis, kind in zip(axes, ("weight", "bias"), strict=True):
                layers = [x for x in dict.fromkeys(str(r["layer"]) for r in rows) if kind in x]
                for place, layer in enumerate(layers):
                    mine = [row for row in rows if row["layer"] == layer]
                    name = layer.removesuffix(f".{kind}")
                    round_curve(axis, mine, name, color=OTHERS[place % 8], ls=DASHES[place % 8])
                axis.set(xlabel="round")
                axis.set_title("weights" if kind == "weight" else "biases")
                if layers:
                    axis.set_yscale("log")
                    axis.yaxis.set_major_formatter("{x:g}")
                    axis.yaxis.set_minor_formatter("")
                else:
                    no_cells(axis)
            axes[0].set_ylabel(f"mean noise std (mean of the last {LAYERS_WINDOW})")
            one_scale(axes)
            legend_below(made, axes)


@dataclass(frozen=True)
class LayerTableStudy(Study):
    """The number of parameters of each layer of the MNIST CNN."""

    name: str = "mnist-layer-table"
    title = "MNIST: parameters in each layer"
    figure: str = "Table 1 (appendix)"

    def cells(self, preset: str) -> list[Cell]:
        """The model alone."""
        grid = MNIST[preset]
        return [cell_of("layer_sizes", {"data": grid.data, "model": grid.model})]

    def numbers(self, results: Results) -> Table:
        """A row for each layer, and their sum."""
        sizes = [row for _, result in select(results, "layer_sizes") for row in result["sizes"]]
        rows = [(str(name), int(count)) for name, count in sizes]
        if rows:
            rows.append(("all", sum(count for _, count in rows)))
        return Table(("layer", "parameters"), rows)

    def draw(self, table: Table, path_stem: Path) -> None:
        """The table itself."""
        with figure(path_stem, width=3.4, height=2.6) as (_, [axis]):
            axis.axis("off")
            if not table.rows:
                no_cells(axis)
                return
            text = [[str(layer), f"{int(number(count)):,}"] for layer, count in table.rows]
            drawn = axis.table(text, colLabels=["layer", "parameters"], loc="center")
            drawn.auto_set_font_size(False)
            drawn.set_fontsize(8)
            drawn.scale(1.0, 1.15)


STUDIES: tuple[Study, ...] = (
    ReconstructionStudy("mnist-pruning", "Figure 2", "MNIST", "pruning"),
    TrainingStudy("mnist-pruning-training", "Figure 3", "MNIST", "pruning"),
    TradeoffStudy("mnist-pruning-tradeoff", "Figure 4", "MNIST", "pruning"),
    ReconstructionStudy("mnist-noise", "Figure 5", "MNIST", "noise"),
    TrainingStudy("mnist-noise-training", "Figure 6", "MNIST", "noise"),
    TradeoffStudy("mnist-noise-tradeoff", "Figure 7", "MNIST", "noise"),
    ImagesStudy("mnist-noise-images", "Figure 8", "MNIST", "noise"),
    TradeoffStudy("cifar-pruning-tradeoff", "Figure 9", "CIFAR-10", "pruning"),
    ImagesStudy("cifar-pruning-images", "Figure 10", "CIFAR-10", "pruning"),
    TradeoffStudy("cifar-noise-tradeoff", "Figure 11", "CIFAR-10", "noise"),
    UtilityStudy("cifar-noise-utility", "Figure 12 (appendix)", "CIFAR-10", "noise"),
    ReconstructionStudy("cifar-noise-error", "Figure 13 (appendix)", "CIFAR-10", "noise"),
    LayerNoiseStudy(),
    LayerTableStudy(),
)
