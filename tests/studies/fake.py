"""A small study of fast cells, importable by worker processes; a log counts the executions."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from gradveil.studies import Cell, Table

LOG = "GRADVEIL_TEST_LOG"


def draw(settings):
    """Some numbers and two tensors, all from the seed; takes a few milliseconds."""
    note_execution(settings)
    time.sleep(settings.get("seconds", 0.0))
    generator = torch.Generator().manual_seed(settings["seed"])
    drawn = torch.randn(64, 64, generator=generator)
    product = drawn @ drawn
    return {
        "mean": float(product.mean()),
        "infinite": float("inf"),
        "words": ["a", {"b": settings["seed"]}],
        "product": product,
        "ranks": product[0].argsort(),
    }


def fail(settings):
    """Fails as long as a file is there."""
    note_execution(settings)
    if Path(settings["while"]).exists():
        raise ArithmeticError("the file is there")
    return {"mean": 1.0}


def die(settings):
    """Kills the process that runs it."""
    note_execution(settings)
    os.kill(os.getpid(), 9)


def from_global_state(settings):
    """What a careless function would do."""
    return {"drawn": torch.randn(3), "threads": torch.get_num_threads()}


def note_execution(settings):
    if LOG in os.environ:
        with open(os.environ[LOG], "a") as file:
            file.write(f"{settings.get('seed')}\n")


def cells(count, seconds=0.0):
    return [Cell(f"{__name__}:draw", {"seed": seed, "seconds": seconds}) for seed in range(count)]


@dataclass(frozen=True)
class FakeStudy:
    name: str = "fake"
    title: str = "A fake study"
    figure: str = "no figure"
    count: int = 12
    seconds: float = 0.0

    def cells(self, preset):
        return cells(self.count if preset == "quick" else 2 * self.count, self.seconds)

    def numbers(self, results):
        rows = sorted(
            (cell.settings["seed"], result["mean"], float(result["product"].norm()))
            for cell, result in results.items()
        )
        return Table({"seed": int, "mean": float, "norm": float}, rows)

    def draw(self, table, path_stem):
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots()
        axes.plot(table.column("seed"), table.column("mean"))
        for suffix in ("png", "pdf"):
            figure.savefig(path_stem.with_name(f"{path_stem.name}.{suffix}"))
        pyplot.close(figure)


@dataclass(frozen=True)
class MixedStudy(FakeStudy):
    """With one cell that fails and one that draws from the global state."""

    def cells(self, preset):
        fails = Cell(f"{__name__}:fail", {"while": os.curdir})
        return [*super().cells(preset), fails, Cell(f"{__name__}:from_global_state", {})]

    def numbers(self, results):
        drawn = {cell: result for cell, result in results.items() if "mean" in result}
        return super().numbers(drawn)


STUDY = FakeStudy()
MIXED_STUDY = MixedStudy("mixed", count=3)
SLOW_STUDY = FakeStudy("slow", count=40, seconds=0.05)
