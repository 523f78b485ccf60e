"""What an audit measures, as cells (training, attacks, identification, bound, details), in waves.

A cell names its subject by a fingerprint. The subject itself, and what is known of it whatever the
defense, is in the `Laboratory` that the runner hands to each process. The `Search` runs cells, and
makes points of what they find.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch

from gradveil._random import numbered_stream
from gradveil._runner import Cell, CellFunction, Failure, Runner, Settings, Stop
from gradveil.catalog import build_defense
from gradveil.federated import Evaluation, NoReplyError, evaluate
from gradveil.scoring import Interval, bootstrap_interval

from .._result import AttackResult, Leak, Point, ToldApart, privacy_of, restore
from ._attacks import beside_guess, run_attacks, told_apart
from ._bounds import guarantee_of, measure_defense
from ._laboratory import Laboratory
from ._strengths import Axis
from ._training import make_pool, trained_model

NO_DEFENSE = "no-defense"


def train(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """The loss and the accuracy after a defended training, for each seed.

    The loss is infinite where training diverged: no message of a round, or the loss, is finite.
    """
    subject, federation = laboratory.subject, laboratory.federation
    held_out = make_pool(subject, federation.clients).held_out
    found: list[Evaluation] = []
    for seed in range(laboratory.settings.training_seeds):
        own = laboratory.defense(settings["defense"], training=True)
        try:
            model = trained_model(subject, own, federation, seed, federation.rounds)
            found.append(evaluate(model, subject.loss_fn, *held_out))
        except NoReplyError:
            found.append(Evaluation(math.inf, 0.0))
    return {
        "losses": [loss if math.isfinite(loss) else math.inf for loss, _ in found],
        "accuracies": [accuracy for _, accuracy in found],
        "before": evaluate(subject.model, subject.loss_fn, *held_out).loss,
    }


def attack(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """Every attack on the messages of the private batches, at one moment of the training."""
    now = laboratory.after(settings["defense"], settings["round"])
    results, notes = run_attacks(now, now.defense(settings["defense"]))
    return {"attacks": [asdict(result) for result in results], "notes": notes}


def identify(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """What the exact attacker reaches, at one moment of the training."""
    now = laboratory.after(settings["defense"], settings["round"])
    found, notes = told_apart(now, now.defense(settings["defense"]))
    return {"told_apart": None if found is None else asdict(found), "notes": notes}


def bound(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """The reference error of one point, in its trace form, and why it is no bound.

    A defense with an (ε, δ), or that plans from the batch, has none here: it takes long.
    """
    defense = laboratory.defense(settings["defense"])
    if defense.about.private or defense.about.formal_privacy is not None:
        return {"bound": None, "reason": "not computed"}
    found, reason = guarantee_of(laboratory, defense, full=False)
    return {"bound": found and found.trace_mse, "reason": reason}


def detail(settings: Settings, laboratory: Laboratory) -> dict[str, Any]:
    """All that is measured of one defense without attacks and training."""
    return asdict(measure_defense(laboratory, laboratory.defense(settings["defense"])))


KINDS: dict[str, tuple[CellFunction, tuple[str, ...]]] = {
    "train": (train, ("federation", "training_seeds")),
    "attack": (attack, ("attacks", "threat", "seeds")),
    "identify": (identify, ()),
    "bound": (bound, ()),
    "detail": (detail, ()),
}
"""Kinds of cells, and what they depend on in the laboratory beside the subject and the seed."""

Progress = Callable[[str, float], None]
"""Called with (what is running, the share of the whole audit that is done)."""


class Search:
    """One audit: its cells, and the points that they give.

    What the runner's folder has already is not run again; a stopped search goes on with what there
    is. The time budget is for all cells.
    """

    def __init__(
        self,
        laboratory: Laboratory,
        runner: Runner,
        progress: Progress | None = None,
        time_budget: float | None = None,
    ) -> None:
        self.laboratory, self._runner = laboratory, runner
        self._progress = progress or (lambda what, share: None)
        self.expected, self._done = 1, 0
        """Cells in all, about, for the progress; and those that are done."""
        self._deadline = None if time_budget is None else time.monotonic() + time_budget
        self._results: dict[Cell, Mapping[str, Any]] = {}
        self._points: dict[str, Point] = {}
        self._strengths: dict[str, set[float]] = {}
        self.failures: dict[Cell, Failure] = {}
        self.notes: dict[str, None] = {}
        """What cells noted, once each."""
        self.stopped: Stop | None = None

    def cell(self, kind: str, defense: str, moment: int = 0) -> Cell:
        """One measurement of a defense, named by what it depends on; see `KINDS`."""
        function, uses = KINDS[kind]
        uses = ("gradveil", "subject", "seed", *uses, *(("federation",) if moment else ()))
        shared = {name: self.laboratory.named[name] for name in uses}
        return Cell(function, {"defense": defense, "round": moment, **shared})

    def cells(self, defense: str, moment: int = 0) -> list[Cell]:
        """All cells of one point; later moments are attacked only."""
        kinds = {
            "attack": bool(self.laboratory.attacks),
            "identify": True,
            "train": self.laboratory.settings.training_seeds and not moment,
            "bound": not moment,
        }
        return [self.cell(kind, defense, moment) for kind, wanted in kinds.items() if wanted]

    def measure(
        self, what: str, wanted: Sequence[tuple[Axis, float]], moments: Sequence[int] = (0,)
    ) -> None:
        """Points at the model as given, and at later moments of their training."""
        for axis, strength in wanted:
            self._strengths.setdefault(axis.name, set()).add(strength)
        texts = [axis.at(strength) for axis, strength in wanted]
        self.run(what, [cell for text in texts for m in moments for cell in self.cells(text, m)])

    def run(self, what: str, cells: Sequence[Cell]) -> None:
        """Run cells; only those that are done are read once the search was stopped."""
        fresh = [cell for cell in dict.fromkeys(cells) if cell not in self._results]

        def settled(cell: Cell | None) -> None:
            self._done += cell is not None
            self._progress(what, min(1.0, self._done / self.expected))

        if fresh and self.stopped is None:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            try:
                settled(None)
                outcome = self._runner.run(fresh, time_budget=left, progress=settled)
                self.failures.update(outcome.failures)
                self.stopped = outcome.stopped
            except KeyboardInterrupt:  # before the first cell
                self.stopped = "interrupted"
        self._points.clear()
        for cell in fresh:
            if (found := self._runner.read(cell)) is not None:
                self._results[cell] = found.values
                self.notes |= dict.fromkeys(found.values.get("notes", ()))

    def found(self, kind: str, defense: str, moment: int = 0) -> Mapping[str, Any] | None:
        """What a cell found; `None` if it is not done."""
        return self._results.get(self.cell(kind, defense, moment))

    def attacks(self, defense: str, moment: int = 0) -> list[AttackResult]:
        """The attacks on one setting at one moment."""
        found = self.found("attack", defense, moment) or {"attacks": ()}
        return [restore(AttackResult, one) for one in found["attacks"]]

    def points(self, axis: Axis) -> dict[float, Point]:
        """What is known of a defense: points that were attacked, by strength."""
        done = sorted(self._strengths.get(axis.name, ()))
        made = {s: self.point(axis.at(s), axis.amount(s) if axis.swept else None) for s in done}
        return {strength: point for strength, point in made.items() if point.leaks}

    def point(self, defense: str = NO_DEFENSE, amount: float | None = None) -> Point:
        """What is known of one setting; without arguments, of the undefended message."""
        if defense in self._points:
            return self._points[defense]
        trained, free = self.found("train", defense), self.found("train", NO_DEFENSE)
        bound = self.found("bound", defense) or {"bound": None, "reason": "not computed"}
        built = build_defense(defense, allow_imports=True)
        privacy = privacy_of(built, self.laboratory.settings.releases)
        kind = "attack" if self.laboratory.attacks else "identify"
        moments = [m for m in self.laboratory.moments if self.found(kind, defense, m) is not None]
        self._points[defense] = Point(
            defense=defense,
            amount=amount,
            leaks=tuple(self._leak(defense, moment) for moment in moments),
            loss=None if trained is None else paired_loss(trained, free or trained),
            accuracy=None if trained is None else _over_seeds(trained["accuracies"]),
            extra_loss=None if trained is None or free is None else extra_loss(trained, free),
            bound=bound["bound"],
            bound_holds=not bound["reason"],
            epsilon=None if privacy is None else privacy.epsilon_rounds,
        )
        return self._points[defense]

    def _leak(self, defense: str, moment: int) -> Leak:
        """The strongest attack at one moment, and what the exact attacker reached."""
        attacks = self.attacks(defense, moment)
        told = self.found("identify", defense, moment) or {"told_apart": None}
        told_apart = restore(ToldApart | None, told["told_apart"])
        if not attacks:
            return Leak(moment, "", None, None, told_apart)
        rated = [(attack, *beside_guess(attack, self.laboratory.guess)) for attack in attacks]
        strongest, error, _ = min(rated, key=lambda one: one[1].mean)
        gains = [gain for _, _, gain in rated]
        best = max(gains, key=lambda gain: (gain.works, gain.gain.mean))
        psnrs = [attack.psnr for attack in attacks if attack.psnr is not None]
        return Leak(
            round=moment,
            attack=strongest.attack,
            error=error,
            psnr=max(psnrs, key=lambda psnr: psnr.high, default=None),
            told_apart=told_apart,
            pictures=strongest.runs[0].pictures,
            copies=max(gain.copies for gain in gains),
            examples=best.examples,
            gain=best.gain,
            works=best.works,
        )


def paired_loss(trained: Mapping[str, Any], free: Mapping[str, Any]) -> Interval | None:
    """The mean over seeds; how far it scatters beside the undefended training of the same seed."""
    losses, plain = trained["losses"], free["losses"]
    if math.inf in plain:
        return _over_seeds(losses)
    beside = [loss - own + fmean(plain) for loss, own in zip(losses, plain, strict=True)]
    return _over_seeds(beside)


def extra_loss(trained: Mapping[str, Any], free: Mapping[str, Any]) -> Interval | None:
    """Of every training, beside the undefended one of the same seed."""
    if math.inf in free["losses"]:
        return None
    pairs = zip(trained["losses"], free["losses"], strict=True)
    return _over_seeds([(loss - plain) / max(abs(plain), 1e-12) for loss, plain in pairs])


def _over_seeds(values: Sequence[float | None]) -> Interval | None:
    """Over seeds; infinite where one training diverged. `None` where there are no numbers."""
    if None in values:
        return None
    known = torch.tensor(values, dtype=torch.float64)
    if not known.isfinite().all():
        return Interval(math.inf, math.inf, math.inf)
    return bootstrap_interval(known, generator=numbered_stream(0))
