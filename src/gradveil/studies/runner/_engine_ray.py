"""The engine for a Ray cluster: this process claims cells and stores results."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradveil._checks import check_count
from gradveil._extras import require

from ._cell import DATA_VARIABLE, Cell
from ._engine import POLL_SECONDS, Prepare, Watch, keep, nothing, prepare_and_execute
from ._owner import Owner
from ._store import Outcome, Store

_PASSED_ON = (DATA_VARIABLE, "PYTHONPATH")


@dataclass(frozen=True)
class RayEngine:
    """Up to `jobs` cells at once on a cluster, each with one processor and one thread.

    The store stays with this process, so the machines of the cluster need the package (and the
    data, under the same path) but no shared folder.

    Args:
        address: Of a running cluster; without it Ray is started on this machine, for this run.
        jobs: Cells at once; without it, the cluster's processors.
        prepare: Called before each cell, where it runs.
    """

    address: str | None = None
    jobs: int | None = None
    prepare: Prepare = nothing

    def __post_init__(self) -> None:
        if self.jobs is not None:
            check_count(self.jobs, "jobs")

    def run(self, folder: Path, cells: Sequence[Cell], watch: Watch) -> None:
        """Run the cells."""
        store = Store(folder)
        try:
            store.want(cells)
            with _connected(self.address, self.jobs) as ray:
                jobs = self.jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
                _Dispatcher(ray, store, jobs, self.prepare).run(watch)
        finally:
            store.close()


class _Dispatcher:
    """Keeps as many cells in flight as there are jobs."""

    def __init__(self, ray: Any, store: Store, jobs: int, prepare: Prepare) -> None:
        self._ray, self._store, self._jobs = ray, store, jobs
        self._prepare = ray.put(prepare)
        self._owner = Owner(store.owners)
        self._task = ray.remote(num_cpus=1)(prepare_and_execute)
        self._flying: dict[Any, Cell] = {}

    def run(self, watch: Watch) -> None:
        try:
            while True:
                watch()
                self._send()
                if self._flying:
                    self._receive()
                elif self._store.unfinished():
                    self._store.release_dead()
                    time.sleep(POLL_SECONDS)
                else:
                    return
        finally:
            for reference in self._flying:
                self._ray.cancel(reference, force=True)
            self._store.release(self._owner.name)
            self._owner.close()

    def _send(self) -> None:
        while len(self._flying) < self._jobs:
            cell = self._store.claim(self._owner)
            if cell is None:
                return
            self._flying[self._task.remote(self._prepare, cell)] = cell

    def _receive(self) -> None:
        ready, _ = self._ray.wait([*self._flying], timeout=POLL_SECONDS)
        for reference in ready:
            cell = self._flying.pop(reference)
            keep(self._store, cell, self._owner, self._outcome(reference))

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome(error=f"{type(error).__name__}: {error}")
        return outcome


@contextmanager
def _connected(address: str | None, jobs: int | None) -> Iterator[Any]:
    """Ray, connected for the time of a run; a connection that was there is used and kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    require("the ray engine", "gradveil[ray]", "ray")
    import ray

    if ray.is_initialized():
        yield ray
        return
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    ray.init(
        place,
        num_cpus=jobs if place == "local" else None,
        runtime_env=None if place == "local" else {"env_vars": passed},
        include_dashboard=False if place == "local" else None,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield ray
    finally:
        ray.shutdown()
