"""The engine for this machine: one process, or several that claim cells from the store."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from gradveil._checks import check_count

from ._cell import Cell
from ._engine import POLL_SECONDS, Prepare, Watch, nothing, work
from ._owner import Owner, new_team
from ._store import Store

_IDLE_CRASHES = 3


@dataclass(frozen=True)
class LocalEngine:
    """`jobs` processes, each with one thread; one job runs in this process.

    Workers share nothing but the store. If this process ends, however it does, so do they.

    Args:
        jobs: Processes.
        prepare: Called in each of them before its first cell; it is pickled for other processes.
    """

    jobs: int = 1
    prepare: Prepare = nothing

    def __post_init__(self) -> None:
        check_count(self.jobs, "jobs")

    def run(self, folder: Path, cells: Sequence[Cell], watch: Watch) -> None:
        """Run the cells."""
        store = Store(folder)
        try:
            store.want(cells)
            store.release_dead()
            if self.jobs == 1:
                self.prepare()
                work(store, Owner(store.owners), watch)
            else:
                jobs = min(self.jobs, max(1, len(cells)))
                _Pool(store, cells, jobs, self.prepare).run(watch)
        finally:
            store.close()


class _Pool:
    """Worker processes, replaced when they crash, stopped when this process is."""

    def __init__(self, store: Store, cells: Sequence[Cell], jobs: int, prepare: Prepare) -> None:
        self._store, self._cells, self._jobs = store, cells, jobs
        self._prepare = prepare
        self._team = new_team()
        self._workers: list[SpawnProcess] = []
        self._idle_crashes = 0

    def run(self, watch: Watch) -> None:
        try:
            with _ignoring_interrupts():
                for _ in range(self._jobs):
                    self._start()
            while self._workers:
                wait([worker.sentinel for worker in self._workers], timeout=POLL_SECONDS)
                watch()
                for worker in [each for each in self._workers if not each.is_alive()]:
                    self._bury(worker)
        finally:
            self._stop()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        arguments = (self._store.folder, self._cells, self._team, self._prepare)
        worker = context.Process(target=_work, args=arguments)
        worker.start()
        self._workers.append(worker)

    def _bury(self, worker: SpawnProcess) -> None:
        worker.join()
        self._workers.remove(worker)
        if worker.exitcode == 0:
            return
        reason = f"The worker process ended with exit code {worker.exitcode}"
        if not self._store.crashed(self._team, f"{reason} while it ran this cell."):
            self._idle_crashes += 1
        if self._idle_crashes > _IDLE_CRASHES:
            raise RuntimeError(f"{reason} without a cell. What it printed says why.")
        with _ignoring_interrupts():
            self._start()

    def _stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join()
        self._store.release_dead()


def _work(folder: Path, cells: Sequence[Cell], team: str, prepare: Prepare) -> None:
    """A worker process, from beginning to end."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare()
    store = Store(folder)
    store.want(cells)
    work(store, Owner(store.owners, team), lambda: None)
    store.close()


def _end_with_parent() -> None:
    """Wait for the parent to end, and end at once: its store needs no farewell."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ctrl-C goes to every process of a terminal; those started in here leave it to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
