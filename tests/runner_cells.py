"""Fast cells, importable by other processes; a log counts the executions."""

import multiprocessing
import os
import time
from pathlib import Path

import torch

from gradveil._runner import Cell, Runner

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


class Held:
    """Notes each time that it is unpickled."""

    def __init__(self, word):
        self.word = word

    def __setstate__(self, state):
        self.__dict__.update(state)
        note_execution({"seed": "loaded"})


def with_held(settings, held):
    return {"word": held.word + str(settings["seed"])}


def note_execution(settings):
    if LOG in os.environ:
        with open(os.environ[LOG], "a") as file:
            file.write(f"{settings.get('seed')}\n")


def cells(count, seconds=0.0):
    return [Cell(draw, {"seed": seed, "seconds": seconds}) for seed in range(count)]


def start(folder, cells, log, jobs=1):
    """A process that runs the cells, forked from one that has imported all it needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=run, args=(folder, cells, log, jobs))
    process.start()
    return process


def run(folder, cells, log, jobs):
    os.environ[LOG] = str(log)
    with Runner(folder, jobs=jobs) as runner:
        outcome = runner.run(cells)
    raise SystemExit({None: 0, "interrupted": 130}[outcome.stopped] or len(outcome.failures))


def executions(log):
    """The seeds of the cells that were started, in order."""
    return log.read_text().split() if log.exists() else []
