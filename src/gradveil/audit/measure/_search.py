"""Runs cells in waves, and makes points of what they find."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradveil._random import numbered_stream
from gradveil._runner import Cell, Failure, Runner, Stop
from gradveil.catalog import build_defense
from gradveil.scoring import Interval, bootstrap_interval

from .._result import AttackResult, Leak, Point, RunResult, ToldApart, privacy_of, restore
from ._cells import KINDS, PLAIN, Laboratory
from ._details import CANDIDATES
from ._guess import BlindGuess, beats_guess, nested_runs
from ._strengths import Axis

Progress = Callable[[str, float], None]
"""Called with (what is running, the share of the whole audit that is done)."""


class Search:
    """One audit: its cells, and the points that they give.

    What the runner's folder has already is not run again; a stopped search goes on with what there
    is.

    Args:
        laboratory: What all cells share.
        runner: Of the cells.
        expected: About how much work there will be in all, in units of `KINDS`.
        progress: To be told of it.
        time_budget: Seconds for all cells.
    """

    def __init__(
        self,
        laboratory: Laboratory,
        runner: Runner,
        expected: float = 1.0,
        progress: Progress | None = None,
        time_budget: float | None = None,
    ) -> None:
        self.laboratory, self._runner = laboratory, runner
        self._expected, self._done, self._progress = expected, 0.0, progress
        self._deadline = None if time_budget is None else time.monotonic() + time_budget
        self._results: dict[Cell, Mapping[str, Any]] = {}
        self._points: dict[str, Point] = {}
        self._strengths: dict[str, set[float]] = {}
        self.failures: dict[Cell, Failure] = {}
        self.notes: list[str] = []
        """What cells noted."""
        self.stopped: Stop | None = None

    def measure(
        self, what: str, wanted: Sequence[tuple[Axis, float]], moments: Sequence[int] = (0,)
    ) -> None:
        """Points at the model as given, and at later moments of their training."""
        for axis, strength in wanted:
            self._strengths.setdefault(axis.name, set()).add(strength)
        texts = [axis.at(strength) for axis, strength in wanted]
        cells = self.laboratory.cells
        self.run(what, [cell for text in texts for m in moments for cell in cells(text, m)])

    def run(self, what: str, cells: Sequence[Cell]) -> None:
        """Run cells; only those that are done are read once the search was stopped."""
        fresh = [cell for cell in dict.fromkeys(cells) if cell not in self._results]
        if fresh and self.stopped is None:
            self._run(what, fresh)
        self._points.clear()
        for cell in fresh:
            found = self._runner.read(cell)
            if found is not None:
                self._results[cell] = found.values
                said = found.values.get("notes", ())
                self.notes += [note for note in said if note not in self.notes]

    def _run(self, what: str, cells: Sequence[Cell]) -> None:
        def settled(cell: Cell | None) -> None:
            self._done += 0.0 if cell is None else KINDS[cell.name].work
            if self._progress is not None:
                self._progress(what, min(1.0, self._done / self._expected))

        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            settled(None)
            outcome = self._runner.run(cells, time_budget=left, progress=settled)
        except KeyboardInterrupt:  # before the first cell
            self.stopped = "interrupted"
            return
        self.failures.update(outcome.failures)
        self.stopped = outcome.stopped

    def found(self, kind: str, defense: str, moment: int = 0) -> Mapping[str, Any] | None:
        """What a cell found; `None` if it is not done."""
        return self._results.get(self.laboratory.cell(kind, defense, moment))

    def attacks(self, defense: str, moment: int = 0) -> list[AttackResult]:
        """The attacks on one setting at one moment."""
        found = self.found("attack", defense, moment)
        return [] if found is None else [restore(AttackResult, one) for one in found["attacks"]]

    def points(self, axis: Axis) -> dict[float, Point]:
        """What is known of a defense: points that were attacked, by strength."""
        strengths = sorted(self._strengths.get(axis.name, ()))
        made = {
            s: self.point(axis.at(s), axis.amount(s) if axis.swept else None) for s in strengths
        }
        return {strength: point for strength, point in made.items() if point.leaks}

    def point(self, defense: str = PLAIN, amount: float | None = None) -> Point:
        """What is known of one setting; without arguments, of the undefended message."""
        if defense not in self._points:
            self._points[defense] = self._point(defense, amount)
        return self._points[defense]

    def _point(self, defense: str, amount: float | None) -> Point:
        trained, free = self.found("train", defense), self.found("train", PLAIN)
        bound = self.found("bound", defense) or {"bound": None, "reason": "not computed"}
        built = build_defense(defense, allow_imports=True)
        privacy = privacy_of(built, self.laboratory.releases, CANDIDATES)
        kind = "attack" if self.laboratory.attacks else "identify"
        moments = [m for m in self.laboratory.moments if self.found(kind, defense, m) is not None]
        return Point(
            defense=defense,
            amount=amount,
            leaks=tuple(self._leak(defense, moment) for moment in moments),
            loss=None if trained is None else _interval(trained["losses"]),
            accuracy=None if trained is None else _interval(trained["accuracies"]),
            extra_loss=None if trained is None or free is None else extra_loss(trained, free),
            bound=bound["bound"],
            bound_holds=not bound["reason"],
            epsilon=None if privacy is None else privacy.epsilon_rounds,
        )

    def _leak(self, defense: str, moment: int) -> Leak:
        """The strongest attack at one moment, and what the exact attacker reached."""
        attacks, guess = self.attacks(defense, moment), self.laboratory.guess
        told = (self.found("identify", defense, moment) or {"told_apart": None})["told_apart"]
        told_apart = None if told is None else restore(ToldApart, told)
        if not attacks:
            return Leak(moment, "", False, None, None, told_apart)
        errors = {attack: error_share(attack, guess) for attack in attacks}
        strongest = min(attacks, key=lambda attack: errors[attack].mean)
        rated = [beats_guess(attack, guess) for attack in attacks]
        best = max(rated, key=lambda one: (one.works, one.gain.mean))
        psnrs = [attack.psnr for attack in attacks if attack.psnr is not None]
        return Leak(
            round=moment,
            attack=strongest.attack,
            knows_defense=strongest.knows_defense,
            error=errors[strongest],
            psnr=max(psnrs, key=lambda psnr: psnr.high, default=None),
            told_apart=told_apart,
            pictures=strongest.runs[0].pictures,
            copies=max(one.copies for one in rated),
            examples=best.examples,
            gain=best.gain,
            works=best.works,
        )


def error_share(attack: AttackResult, guess: BlindGuess) -> Interval:
    """The squared error over the guess's, example by example, of the best mix of both.

    An example with no further error than the guess has 1, whether it is easy to guess or not.
    """
    guessed = guess.errors.double().clamp(min=1e-12).tolist()

    def shares(run: RunResult) -> tuple[float, ...]:
        errors = run.mixed or run.mse_pixels
        own = guessed[run.batch * len(errors) :]
        return tuple(e / g for e, g in zip(errors, own, strict=False))

    return bootstrap_interval(nested_runs(attack.runs, shares), generator=numbered_stream(0))


def extra_loss(trained: Mapping[str, Any], free: Mapping[str, Any]) -> Interval | None:
    """Of every seed of the noise, beside the one undefended training with the same batches."""
    plain = free["losses"][0]
    if math.isinf(plain):
        return None
    return _interval([(loss - plain) / max(abs(plain), 1e-12) for loss in trained["losses"]])


def _interval(values: Sequence[float | None]) -> Interval | None:
    """Over seeds; infinite where one training diverged. `None` where there are no numbers."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if not all(map(math.isfinite, known)):
        return Interval(math.inf, math.inf, math.inf)
    return bootstrap_interval(
        torch.tensor(known, dtype=torch.float64), generator=numbered_stream(0)
    )
