"""Small computations, each kept in one file: what was stopped at any moment goes on from there.

A `Cell` is a module-level function and its settings. A `Runner` runs cells in this process, in
several processes of this machine or on a Ray cluster, and writes what each finds to one JSON file,
whole or not at all. There is no other state: a cell is done if its file is there. So a run may be
interrupted or killed, and several runs may share a folder, at any time: at worst a cell that was
not finished is computed again, to the same bytes.

>>> import tempfile
>>> def double(settings):
...     return {"twice": 2 * settings["number"]}
>>> with tempfile.TemporaryDirectory() as folder, Runner(folder) as runner:
...     cells = [Cell(double, {"number": number}) for number in (1, 2)]
...     outcome = runner.run(cells)
...     [runner.read(cell).values for cell in cells]
[{'twice': 2}, {'twice': 4}]
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import logging
import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._checks import WrongType, check_choice, check_count
from ._files import write_atomically
from ._imports import require

Settings = Mapping[str, Any]
"""What a cell depends on: JSON (numbers, words, lists, dicts), with a seed if it draws."""

CellFunction = Callable[..., Mapping[str, Any]]
"""Maps settings, or settings and what the runner holds, to JSON values, tensors and arrays. All
that it draws and reads is determined by its settings."""

Stop = Literal["interrupted", "time budget"]


@dataclass(frozen=True, init=False)
class Cell:
    """One computation, named by its function, the function's version, and the settings.

    Args:
        function: A function of a module. Its name without the module's is in the key, so that code
            may be moved. Its attribute `version`, 1 without it, is to be raised when it finds other
            numbers.
        settings: JSON; the order of names does not matter, and a tuple is a list.

    >>> cell = Cell(dict, {"seed": 0, "ratio": 0.9})
    >>> cell == Cell(dict, {"ratio": 0.9, "seed": 0}), cell.settings["ratio"]
    (True, 0.9)
    """

    function: CellFunction
    text: str

    def __init__(self, function: CellFunction, settings: Settings) -> None:
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "text", canonical_json(dict(settings)))

    @property
    def name(self) -> str:
        """The function's."""
        return self.function.__name__

    @property
    def version(self) -> int:
        """The function's."""
        return getattr(self.function, "version", 1)

    @property
    def settings(self) -> Settings:
        """A fresh copy of the settings, as JSON gives them back."""
        return MappingProxyType(json.loads(self.text))

    @functools.cached_property
    def key(self) -> str:
        """The SHA-256 of name, version and settings."""
        whole = canonical_json([self.name, self.version, self.text])
        return hashlib.sha256(whole.encode()).hexdigest()


class Found(NamedTuple):
    """What a cell found, and the seconds that it took."""

    values: dict[str, Any]
    seconds: float


class Failure(NamedTuple):
    """The error of a cell: the exception's class and message, and where it was raised."""

    error: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Outcome:
    """What became of a run. A cell that raises fails alone, and the next run tries it again."""

    failures: Mapping[Cell, Failure]
    stopped: Stop | None
    """By Ctrl-C or by the time budget; `None` if each cell is done or has failed."""


class Runner:
    """Runs cells and keeps what they find in a folder.

    Each cell runs with one thread, since sums depend on how many share them, and a global random
    state of its own: neither its place in the order nor the engine shows in its bytes.

    Args:
        folder: Made if it does not exist; any number of runners may use it at once. What processes
            killed a day ago or earlier left half written is removed.
        holds: What cell functions get as second argument; they get settings alone if `None`. It is
            pickled once for each process, and no part of a cell's name: let the settings name its
            content, by a hash.
        engine: "local": this process, or several of this machine; "ray": the cluster that the
            variable RAY_ADDRESS names; without it Ray is started on this machine.
        jobs: Cells at once. One, if `None`; with Ray the cluster's processors.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        holds: object = None,
        engine: str = "local",
        jobs: int | None = None,
    ) -> None:
        check_choice(engine, "engine", ("local", "ray"))
        if jobs is not None:
            check_count(jobs, "jobs")
        self.folder, self._holds = Path(folder), holds
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(".*.json.*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - 24 * 3600:
                    path.unlink()
        self._start: Callable[[], _Processes | _Ray] | None = None  # cells run in this process
        if engine == "ray":
            self._start = functools.partial(_Ray, jobs, holds)
        elif (jobs or 1) > 1:
            self._start = functools.partial(_Processes, jobs or 1, self.folder, holds)
        self._engine: _Processes | _Ray | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; the next run starts others."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def read(self, cell: Cell) -> Found | None:
        """What a cell found; `None` if it is not done, or its file is damaged."""
        return read_cell(self.folder, cell)

    def run(
        self,
        cells: Sequence[Cell],
        *,
        time_budget: float | None = None,
        progress: Callable[[Cell], None] | None = None,
    ) -> Outcome:
        """Run the cells that are not done, each once, in this order.

        Args:
            cells: Those that are equal are one.
            time_budget: Seconds, after which cells in other processes are given up; one in this
                process ends first.
            progress: Called with each cell that is done or has failed.
        """
        deadline = None if time_budget is None else time.monotonic() + time_budget
        failures: dict[Cell, Failure] = {}
        stopped: Stop | None = "interrupted"
        with contextlib.suppress(KeyboardInterrupt):
            stopped = self._run(dict.fromkeys(cells), failures, deadline, progress)
        if stopped is not None:
            self.close()
        return Outcome(failures, stopped)

    def _run(
        self,
        cells: Iterable[Cell],
        failures: dict[Cell, Failure],
        deadline: float | None,
        progress: Callable[[Cell], None] | None,
    ) -> Stop | None:
        settled = progress or (lambda _: None)
        flying: dict[Future[_Reply], Cell] = {}
        waiting = iter(cells)
        while True:
            for cell in waiting:
                if self.read(cell) is None:  # another run may have done it by now
                    flying[self._submit(cell)] = cell
                    if len(flying) >= (self._engine.jobs if self._engine else 1):
                        break
                else:
                    settled(cell)
            if not flying:
                return None
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if left == 0:
                return "time budget"
            ready, _ = wait(flying, left, FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in ready):
                self.close()
                replies = {}
                for cell in flying.values():  # again, with nobody beside it
                    with contextlib.closing(_Processes(1, self.folder, self._holds)) as pool:
                        replies[cell] = _reply_of(pool.submit(cell))
                flying.clear()
            else:
                replies = {flying.pop(future): _reply_of(future) for future in ready}
            for cell, reply in replies.items():
                failure = _keep(self.folder, cell, reply)
                if failure is not None:
                    failures[cell] = failure
                settled(cell)

    def _submit(self, cell: Cell) -> Future[_Reply]:
        if self._engine is None and self._start is not None:
            self._engine = self._start()
        future: Future[_Reply] = Future()
        if self._engine is None:
            future.set_result(_execute(cell, self._holds))
            return future
        try:
            return self._engine.submit(cell)
        except BrokenProcessPool as error:  # a process died between two cells
            future.set_exception(error)
            return future


def cell_path(folder: Path, cell: Cell) -> Path:
    """The file of a cell."""
    return folder / f"{cell.name}-{cell.key[:32]}.json"


def read_cell(folder: Path, cell: Cell) -> Found | None:
    """What a cell found, tensors as tensors; `None` if there is no such file, or it is damaged."""
    try:
        kept = json.loads(cell_path(folder, cell).read_bytes(), object_hook=_unpacked)
        known = kept["function"], kept["version"], canonical_json(kept["settings"])
        found = Found(dict(kept["result"]), float(kept["seconds"]))
        return found if known == (cell.name, cell.version, cell.text) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def canonical_json(value: object, **options: Any) -> str:
    """One text for one value: sorted names, no spaces, the shortest exact floats, no NaN."""
    usual = {"sort_keys": True, "separators": (",", ":"), "allow_nan": False}
    return json.dumps(value, **{**usual, **options})


def processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_Reply = str | Failure | None
"""The text of a cell's file, or why there is none; `None`: the file is written."""


def _execute(cell: Cell, holds: object) -> _Reply:
    """Run one cell where we are, and write its file's content: JSON with NaN and infinities."""
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(cell.key[:8], 16))
            given = (cell.settings,) if holds is None else (cell.settings, holds)
            values = cell.function(*given)
        content = {
            "function": cell.name,
            "version": cell.version,
            "settings": dict(cell.settings),
            "seconds": round(time.perf_counter() - start, 3),
            "result": dict(values),
        }
        return canonical_json(content, allow_nan=True, default=_packed)
    except Exception as error:
        return _failure(error)
    finally:
        torch.set_num_threads(threads)


def _keep(folder: Path, cell: Cell, reply: _Reply) -> Failure | None:
    """Write a cell's file; why there is none."""
    if not isinstance(reply, str):
        return reply
    try:
        write_atomically(cell_path(folder, cell), reply)
    except OSError as error:  # a full disk, say
        return _failure(error)
    return None


def _failure(error: BaseException) -> Failure:
    return Failure(type(error).__name__, str(error), "".join(traceback.format_exception(error)))


def _packed(value: object) -> Any:
    """Tensors and arrays become ``{"$npy": the bytes of an .npy file in base64}``."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError(
            f"A result should be JSON, tensors and arrays. Found {type(value).__name__}"
        )
    array = value.numpy(force=True) if isinstance(value, Tensor) else value
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)
    return {"$npy": base64.b64encode(file.getvalue()).decode()}


def _unpacked(value: dict[str, Any]) -> Any:
    if value.keys() != {"$npy"}:
        return value
    packed = io.BytesIO(base64.b64decode(value["$npy"]))
    return torch.from_numpy(np.load(packed, allow_pickle=False))


def _reply_of(future: Future[_Reply]) -> _Reply:
    """What a process sent, or how it ended without."""
    try:
        return future.result()
    except BrokenProcessPool:
        message = "The process that ran the cell was killed, or ended without a word."
        return Failure("ProcessDied", message, message)
    except Exception as error:
        return _failure(error)


class _Processes:
    """Processes of this machine. They end when this one does, however it does, or closes.

    They write the files, and send next to nothing: where a process ends amid what it sends, this
    one would wait for the rest for ever.
    """

    def __init__(self, jobs: int, folder: Path, holds: object) -> None:
        try:
            held = pickle.dumps(holds)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            what, found = "What cells of other processes hold", f"`{type(error).__name__}: {error}`"
            advice = "Define functions and classes in a module, or use one job."
            raise WrongType(what, "be picklable", found, advice) from error
        self.jobs, context = jobs, multiprocessing.get_context("spawn")
        self._theirs, self._ours = context.Pipe(duplex=False)
        given = (self._theirs, folder, held)
        self._pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=given)

    def submit(self, cell: Cell) -> Future[_Reply]:
        if threading.current_thread() is not threading.main_thread():
            return self._pool.submit(_execute_held, cell)
        # Ctrl-C goes to every process of a terminal; those started here leave it to this one
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return self._pool.submit(_execute_held, cell)
        finally:
            signal.signal(signal.SIGINT, before)

    def close(self) -> None:
        self._ours.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._theirs.close()


_held: tuple[Path, object] = (Path(), None)
"""In a process of a pool: its runner's folder, and what that holds, from when it begins."""


def _begin(parent: Connection, folder: Path, holds: bytes) -> None:
    """The start of a process of a pool. It ends at once when its runner's does, or closes."""
    global _held

    def end() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent.recv_bytes()
        os._exit(1)  # no file needs a farewell

    threading.Thread(target=end, daemon=True).start()
    _held = folder, pickle.loads(holds)


def _execute_held(cell: Cell) -> Failure | None:
    folder, holds = _held
    return _keep(folder, cell, _execute(cell, holds))


class _Ray:
    """Tasks of a Ray cluster, each with one processor. Files are written by this process: the
    cluster's machines need the package, and data under the same path, but no shared folder."""

    def __init__(self, jobs: int | None, holds: object) -> None:
        require("the ray engine", "gradveil[ray]", "ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray, self._ends = ray, not ray.is_initialized()
        place = os.environ.get("RAY_ADDRESS") or "local"
        passed = {n: v for n, v in os.environ.items() if re.match("PYTHONPATH$|GRADVEIL_", n)}
        options: dict[str, Any] = {"runtime_env": {"env_vars": passed}}
        if place == "local":
            options = {"num_cpus": jobs, "include_dashboard": False}
        if self._ends:
            ray.init(place, log_to_driver=False, logging_level=logging.ERROR, **options)
        self.jobs = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._holds = ray.put(holds)
        self._task = ray.remote(num_cpus=1)(_execute)
        self._flying: dict[Future[_Reply], Any] = {}

    def submit(self, cell: Cell) -> Future[_Reply]:
        self._flying = {future: ref for future, ref in self._flying.items() if not future.done()}
        reference = self._task.remote(cell, self._holds)
        future: Future[_Reply] = reference.future()
        self._flying[future] = reference
        return future

    def close(self) -> None:
        for future, reference in self._flying.items():
            if not future.done():
                self._ray.cancel(reference, force=True)
        if self._ends:
            self._ray.shutdown()
