"""Runs cells in waves, and keeps what is known of every defense and strength."""

import time
from collections.abc import Sequence
from pathlib import Path

from gradveil.studies.runner import Cell, Engine, Result, Store, throttled

from .._frontier import Point
from .._meter import Meter
from .._result import StopReason
from .._undefended import BlindGuess
from ._axis import Axis
from ._measuring import Plan, point_of

PLAIN = "no-defense"
WORK = {"attack": 6.0, "identify": 1.0, "train": 3.0, "bound": 0.5, "smooth": 3.0, "detail": 5.0}
"""About how long cells take, over each other."""


class _TimeIsOver(Exception):
    pass


class Search:
    """One audit over strengths: its cells, and the points that they give.

    Everything is kept in a store. What a store of the same folder has already is not run again; a
    stopped search goes on with what there is.
    """

    def __init__(
        self,
        plan: Plan,
        guess: BlindGuess,
        engine: Engine,
        folder: Path,
        meter: Meter,
        time_budget: float | None,
    ) -> None:
        self.plan, self._guess, self._engine = plan, guess, engine
        self._folder, self._meter = folder, meter
        self._deadline = None if time_budget is None else time.monotonic() + time_budget
        self._results: dict[Cell, Result] = {}
        self._made: dict[str, tuple[int, Point]] = {}
        self._strengths: dict[str, set[float]] = {}
        self.notes: list[str] = []
        self.stopped: StopReason | None = None

    @property
    def results(self) -> dict[Cell, Result]:
        """The cells that are done."""
        return self._results

    def measure(
        self, what: str, wanted: Sequence[tuple[Axis, float]], moments: Sequence[int] = (0,)
    ) -> None:
        """Points at the model as given, and at later moments of their training."""
        self.run(what, self.cells(wanted, moments))

    def cells(
        self, wanted: Sequence[tuple[Axis, float]], moments: Sequence[int] = (0,)
    ) -> list[Cell]:
        """The cells of points, which are from now on among those that are known."""
        for axis, strength in wanted:
            self._strengths.setdefault(axis.name, set()).add(strength)
        texts = [axis.at(strength) for axis, strength in wanted]
        return [cell for text in texts for m in moments for cell in self.plan.point(text, m)]

    def run(self, what: str, cells: Sequence[Cell]) -> None:
        """Run cells; nothing once the search was stopped."""
        fresh = [cell for cell in dict.fromkeys(cells) if cell not in self._results]
        store = Store(self._folder)
        try:
            if fresh and self.stopped is None:
                self._run(what, store, fresh)
            self._results |= store.results(fresh)
            self._note_failures(store, fresh)
        finally:
            store.close()

    def _run(self, what: str, store: Store, cells: Sequence[Cell]) -> None:
        try:
            self._meter.start(what, sum(map(_work, cells)))
            store.retry_failed(cells)
            self._engine.run(self._folder, cells, throttled(lambda: self._watch(store, cells)))
        except KeyboardInterrupt:
            self._stop("interrupted", "Stopped by the user before all was measured.")
        except _TimeIsOver:
            self._stop("time budget", "The time budget ended before all was measured.")

    def _watch(self, store: Store, cells: Sequence[Cell]) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise _TimeIsOver
        states = store.progress(cells)
        done = sum(_work(cell) for cell in cells if states[cell].state in ("done", "failed"))
        self._meter.at(done / sum(map(_work, cells)))

    def _stop(self, reason: StopReason, text: str) -> None:
        self.stopped = reason
        self.notes.append(f"{text} The same command goes on where it stopped.")

    def _note_failures(self, store: Store, cells: Sequence[Cell]) -> None:
        for cell, progress in store.progress(cells).items():
            if progress.state == "failed":
                reason = " ".join((progress.error or "").strip().splitlines()[-1:])
                what = cell.kind.rpartition(":")[2]
                self.notes.append(f"`{what}` failed on {cell.settings['defense']}: {reason}")
        for cell in cells:
            found = self._results.get(cell, Result({}))
            self.notes += [note for note in found.get("notes", []) if note not in self.notes]

    def plain(self) -> Point:
        """The undefended message."""
        return self._point(PLAIN, None)

    def _point(self, text: str, amount: float | None) -> Point:
        """Made again only when more is known of it."""
        moments = self.plan.training.moments()
        cells = [cell for m in moments for cell in self.plan.point(text, m)]
        done = sum(cell in self._results for cell in [*cells, self.plan.train(PLAIN)])
        if text not in self._made or self._made[text][0] != done:
            made = point_of(self._results, self.plan, text, amount, self._guess, PLAIN)
            self._made[text] = done, made
        return self._made[text][1]

    def points(self, axis: Axis) -> dict[float, Point]:
        """What is known of a defense: points that were attacked, by strength."""
        known = {}
        for strength in sorted(self._strengths.get(axis.name, ())):
            amount = axis.amount(strength) if axis.swept else None
            point = self._point(axis.at(strength), amount)
            if point.leaks:
                known[strength] = point
        return known


def _work(cell: Cell) -> float:
    return WORK[cell.kind.rpartition(":")[2]]
