"""The base of all engines: run one cell, and work through a store until nothing is left."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ._arrays import pack_array
from ._cell import Cell, canonical_json, function_of
from ._owner import Owner
from ._store import Outcome, Store

POLL_SECONDS = 0.2

Watch = Callable[[], None]
"""Called every now and then while cells run."""


Prepare = Callable[[], None]
"""Called in a process before it runs cells, once or more often."""


def nothing() -> None:
    """Prepare nothing: cells name all that they need."""


def throttled(call: Watch, seconds: float = 1.0) -> Watch:
    """The same, called at most once in so many seconds."""
    following = 0.0

    def watch() -> None:
        nonlocal following
        if time.monotonic() >= following:
            call()
            following = time.monotonic() + seconds

    return watch


class Engine(Protocol):
    """A way to run cells; the bytes they give do not depend on it."""

    def run(self, folder: Path, cells: Sequence[Cell], watch: Watch) -> None:
        """Return when each of the cells is done or has failed, here or in another process."""


def execute(cell: Cell) -> Outcome:
    """Run one cell; an error becomes its traceback.

    A cell always has one thread, since sums depend on how many share them, and a global random
    state of its own, so that neither its place in the queue nor the engine can show in its bytes.
    """
    start = time.perf_counter()
    try:
        function = function_of(cell.kind)
        _check_sources(cell)
        with _isolated(int(cell.identity[:8], 16)):
            measured = function(cell.settings)
        arrays = {
            name: pack_array(name, v) for name, v in measured.items() if isinstance(v, Tensor)
        }
        values = {name: v for name, v in measured.items() if not isinstance(v, Tensor)}
        text = canonical_json(values, allow_nan=True)
    except Exception:
        return Outcome(error=traceback.format_exc(), seconds=time.perf_counter() - start)
    return Outcome(text, arrays, seconds=time.perf_counter() - start)


def prepare_and_execute(prepare: Prepare, cell: Cell) -> Outcome:
    """The same in a process that may not be prepared yet."""
    prepare()
    return execute(cell)


def keep(store: Store, cell: Cell, owner: Owner, outcome: Outcome) -> None:
    """Write an outcome into the store; an array that cannot be written fails its cell."""
    try:
        store.finish(cell, owner, outcome)
    except OSError:
        failure = Outcome(error=traceback.format_exc(), seconds=outcome.seconds)
        store.finish(cell, owner, failure)


def work(store: Store, owner: Owner, watch: Watch) -> None:
    """Claim and run the wanted cells of a store until none is pending or running anywhere."""
    try:
        while True:
            watch()
            cell = store.claim(owner)
            if cell is not None:
                keep(store, cell, owner, execute(cell))
            elif store.unfinished():
                store.release_dead(but=owner.team)
                time.sleep(POLL_SECONDS)
            else:
                return
    finally:
        store.release(owner.name)
        owner.close()


def _check_sources(cell: Cell) -> None:
    """Require that this process has the sources by which the cell was claimed."""
    if not cell.is_current:
        raise RuntimeError(
            f"The sources of cells of the kind {cell.kind!r} should stay as they are during a run."
            " Found that they have changed, or differ on this machine. Run the same again."
        )


@contextlib.contextmanager
def _isolated(seed: int) -> Iterator[None]:
    """One thread and a seeded global random state inside, everything as it was afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
