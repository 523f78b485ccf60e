"""Noise per layer through training, and the layers' sizes (Figure 14 and Table 1)."""

from dataclasses import dataclass
from pathlib import Path

from gradveil.studies.figures import (
    DASHES,
    OTHERS,
    figure,
    legend_below,
    no_cells,
    one_scale,
    round_curve,
)
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import CURVES, MNIST, number, select, summary

from ._families import FIGURES
from ._training import smoothed

WINDOW = 10
DEFENSE = ("optimal-dpsgd", 0.1)


@dataclass(frozen=True)
class LayerNoiseStudy:
    """The average optimal noise of each layer, smoothed over 10 rounds."""

    name: str = "mnist-layer-noise"
    title: str = "MNIST: average optimal noise in each layer through training"
    figure: str = FIGURES["mnist-layer-noise"]

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
            smooth = {unit: smoothed(levels, WINDOW) for unit, levels in units.items()}
            for place in range(min(len(curve) for curve in smooth.values())):
                here = {unit: curve[place : place + 1] for unit, curve in smooth.items()}
                rows.append((layer, place + 1, *summary(here)))
        numbers = {"mean": float, "low": float, "high": float, "n": int}
        return Table({"layer": str, "round": int, **numbers}, rows)

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
            axes[0].set_ylabel(f"mean noise std (mean of the last {WINDOW})")
            one_scale(axes)
            legend_below(made, axes)


@dataclass(frozen=True)
class LayerTableStudy:
    """The number of parameters of each layer of the MNIST CNN."""

    name: str = "mnist-layer-table"
    title: str = "MNIST: parameters in each layer"
    figure: str = FIGURES["mnist-layer-table"]

    def cells(self, preset: str) -> list[Cell]:
        """The model alone."""
        grid = MNIST[preset]
        return [Cell("layer-sizes", {"data": grid.data, "model": grid.model})]

    def numbers(self, results: Results) -> Table:
        """A row for each layer, and their sum."""
        sizes = [row for _, result in select(results, "layer-sizes") for row in result["sizes"]]
        rows = [(str(name), int(count)) for name, count in sizes]
        if rows:
            rows.append(("all", sum(count for _, count in rows)))
        return Table({"layer": str, "parameters": int}, rows)

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
