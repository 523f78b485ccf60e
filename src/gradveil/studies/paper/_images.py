"""Originals beside what an attacker made of them (Figures 8 and 10)."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from gradveil.studies.figures import draw_images
from gradveil.studies.runner import Cell, Results, Table
from gradveil.studies.shared import (
    Grid,
    defense_spec,
    grouped,
    level_text,
    name_and_level,
    number,
    select,
)

from ._families import FIGURES, GRIDS

SHOWN = 4

LINE = 20
"""Letters that fit beside a row of pictures."""


@dataclass(frozen=True)
class ImagesStudy:
    """Four images: the originals and the reconstructions under two defenses."""

    name: str
    data: str
    defenses: tuple[tuple[str, float], ...]
    needs_arrays: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """What it shows."""
        first, second = (level_text(name, level) for name, level in self.defenses)
        return f"{self.data}: images rebuilt from {first} and {second}"

    @property
    def figure(self) -> str:
        """Where the paper has it."""
        return FIGURES[self.name]

    def cells(self, preset: str) -> list[Cell]:
        """The first four images: MNIST's in one batch, CIFAR-10's two at a time."""
        grid = first_images(GRIDS[self.data][preset], self.data)
        specs = [defense_spec(name, level, grid.estimator) for name, level in self.defenses]
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
        columns = {"defense": str, "level": float, "image": int, "mse": float, "psnr": float}
        return Table(columns, rows, arrays)

    def draw(self, table: Table, path_stem: Path) -> None:
        """The originals above, one row for each defense below."""
        rows = table.as_dicts()
        lines = []
        if "originals" in table.arrays:
            originals = table.arrays["originals"]
            lines.append(("originals", originals, [""] * len(originals)))
        for name, level in self.defenses:
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
