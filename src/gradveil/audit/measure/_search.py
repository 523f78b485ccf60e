"""Runs cells in waves, and keeps what is known of every defense and strength."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradveil._runner import Cell, Failure, Runner

from .._result import Point, StopReason
from ._cells import PLAIN, Plan
from ._guess import BlindGuess
from ._points import point_of
from ._strengths import Axis

Progress = Callable[[str, float], None]
"""Called with (what is running, the share of the whole audit that is done)."""

WORK = {"attack": 6.0, "identify": 1.0, "train": 3.0, "bound": 0.5, "smooth": 3.0, "detail": 5.0}
"""About how long cells take, over each other."""


class Meter:
    """Adds up weighted parts and tells the share of the whole.

    >>> meter = Meter(4.0, lambda what, share: print(what, share))
    >>> meter.start("first", 1.0)
    first 0.0
    >>> meter.at(0.5)
    first 0.125
    >>> meter.start("second", 3.0)
    second 0.25
    """

    def __init__(self, total: float, progress: Progress | None) -> None:
        self._total, self._progress = max(total, 1e-9), progress
        self._what, self._before, self._weight = "", 0.0, 0.0

    def start(self, what: str, weight: float) -> None:
        """The part before is done; this one begins."""
        self._before += self._weight
        self._what, self._weight = what, weight
        self.at(0.0)

    def at(self, share: float) -> None:
        """How much of the present part is done."""
        if self._progress is not None:
            done = self._before + min(1.0, share) * self._weight
            self._progress(self._what, min(1.0, done / self._total))


class Search:
    """One audit: its cells, and the points that they give.

    What the runner's folder has already is not run again; a stopped search goes on with what there
    is.
    """

    def __init__(
        self,
        plan: Plan,
        guess: BlindGuess,
        runner: Runner,
        meter: Meter,
        time_budget: float | None,
    ) -> None:
        self.plan, self._guess, self._runner, self._meter = plan, guess, runner, meter
        self._deadline = None if time_budget is None else time.monotonic() + time_budget
        self._results: dict[Cell, Mapping[str, Any]] = {}
        self._made: dict[str, tuple[int, Point]] = {}
        self._strengths: dict[str, set[float]] = {}
        self.failures: dict[Cell, Failure] = {}
        self.notes: list[str] = []
        """What cells noted."""
        self.stopped: StopReason | None = None

    @property
    def results(self) -> Mapping[Cell, Mapping[str, Any]]:
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
        """Run cells; only those that are done are read once the search was stopped."""
        fresh = [cell for cell in dict.fromkeys(cells) if cell not in self._results]
        if fresh and self.stopped is None:
            self._run(what, fresh)
        for cell in fresh:
            found = self._runner.read(cell)
            if found is not None:
                self._results[cell] = found.values
                said = found.values.get("notes", ())
                self.notes += [note for note in said if note not in self.notes]

    def _run(self, what: str, cells: Sequence[Cell]) -> None:
        whole, done = sum(WORK[cell.name] for cell in cells), 0.0

        def settled(cell: Cell) -> None:
            nonlocal done
            done += WORK[cell.name]
            self._meter.at(done / whole)

        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            self._meter.start(what, whole)
            outcome = self._runner.run(cells, time_budget=left, progress=settled)
        except KeyboardInterrupt:  # before the first cell
            self.stopped = "interrupted"
            return
        self.failures.update(outcome.failures)
        self.stopped = outcome.stopped

    def plain(self) -> Point:
        """The undefended message."""
        return self._point(PLAIN, None)

    def _point(self, text: str, amount: float | None) -> Point:
        """Made again only when more is known of it."""
        cells = [cell for m in self.plan.moments for cell in self.plan.point(text, m)]
        done = sum(cell in self._results for cell in [*cells, self.plan.train(PLAIN)])
        if text not in self._made or self._made[text][0] != done:
            made = point_of(self._results, self.plan, text, amount, self._guess)
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
