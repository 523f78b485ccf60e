"""Processes that work on a store, quick to start and free to be killed."""

import multiprocessing
import os
import sys
from pathlib import Path

from gradveil.studies.runner._engine_local import LocalEngine

from . import fake

ROOT = Path(__file__).parents[2]
REPRODUCE = [sys.executable, "-c", "from gradveil.cli import main; main()", "reproduce"]


def start(folder, cells, log, jobs=1):
    """A process that runs the cells, forked from one that has imported all it needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_run, args=(folder, cells, log, jobs))
    process.start()
    return process


def _run(folder, cells, log, jobs):
    os.environ[fake.LOG] = str(log)
    LocalEngine(jobs).run(folder, cells, lambda: None)


def executions(log):
    """The seeds of the cells that were started, in order."""
    return log.read_text().split() if log.exists() else []


def environment(log):
    """For a process that imports the tests' modules."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, fake.LOG: str(log), "OMP_NUM_THREADS": "1"}
