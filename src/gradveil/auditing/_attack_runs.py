"""Runs every attack on every defense, batch and seed, within the time budget."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

from gradveil._random import numbered_stream
from gradveil.attacks import (
    INTERRUPTED,
    TIME_BUDGET,
    Attack,
    CallableAttack,
    Observation,
    Reconstruction,
    ThreatModel,
    Watch,
    observe,
)
from gradveil.catalog import shown_name, spec_of
from gradveil.defenses import Defense

from ._meter import Meter
from ._result import AttackResult, RunResult, StopReason
from ._subject import Subject
from ._summary import attack_result
from ._tasks import scored


@dataclass
class Attacked:
    """The attack runs so far, by defense and attack."""

    runs: dict[tuple[str, str], list[RunResult]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    stopped: StopReason | None = None
    """Why something is missing; an interruption counts more than the time budget."""

    def results(self, name: str, attacks: Sequence["Named"]) -> tuple[AttackResult, ...]:
        """The attacks on one defense that gave something."""
        attack_runs = [(one, self.runs.get((name, one.spec), [])) for one in attacks]
        return tuple(attack_result(one.spec, one.knows, runs) for one, runs in attack_runs if runs)

    def stop(self, reason: StopReason, text: str) -> None:
        """Note that it ended early, and why."""
        self.stopped = self.stopped if self.stopped == "interrupted" else reason
        self.note(text)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class Named:
    """An attack with its specification."""

    spec: str
    attack: Attack

    @property
    def knows(self) -> bool:
        """Whether it makes use of the defense."""
        return self.attack.knows_defense

    @property
    def work(self) -> float:
        """About how many gradients of the message it takes for one observation."""
        return self.attack.work


def named(attacks: Sequence[Attack]) -> list[Named]:
    """The attacks by their specifications; repeated ones once."""
    by_spec = {}
    for attack in attacks:
        written = attack.function if isinstance(attack, CallableAttack) else attack
        by_spec[spec_of(written)] = attack
    return [Named(spec, attack) for spec, attack in by_spec.items()]


@dataclass
class AttackRuns:
    """One audit's attacks."""

    subject: Subject
    defenses: Mapping[str, Defense]
    attacks: Sequence[Named]
    threat: ThreatModel
    seeds: int
    seed: int
    watch: Watch
    meter: Meter
    attacked: Attacked = field(default_factory=Attacked)

    def run(self) -> Attacked:
        """All of it; what is finished when it is stopped (Ctrl-C, the time budget)."""
        jobs = [job for attack in self.attacks for job in self._jobs(attack)]
        try:
            for place, (attack, names, batch, seed) in enumerate(jobs):
                if self.watch.is_over():
                    text = "The time budget ended before all attacks had run."
                    self.attacked.stop("time budget", text)
                    return self.attacked
                left = self.watch.left()
                rest = sum(one.work * len(them) for one, them, *_ in jobs[place:])
                budget = None if left is None else left * attack.work * len(names) / rest
                if not self._run_one(attack, names, batch, seed, budget):
                    return self._interrupted()
        except KeyboardInterrupt:
            return self._interrupted()
        return self.attacked

    def _interrupted(self) -> Attacked:
        self.attacked.stop("interrupted", "Stopped by the user before all attacks had run.")
        return self.attacked

    def _jobs(self, attack: Named) -> list[tuple[Named, list[str], int, int]]:
        """Attacks that take several observations and do not look at the defense get all at once."""
        needs = attack.knows and attack.attack.needs_defense
        if needs and self.threat.mechanism == "unknown":
            self.attacked.note(
                f"`{attack.spec}` was left out: the threat model does not tell the mechanism."
            )
            return []
        names = list(self.defenses)
        together = attack.attack.runs_together and not attack.knows
        groups = [names] if together else [[name] for name in names]
        return [
            (attack, group, batch, seed)
            for batch in range(self.subject.batches)
            for seed in range(self.seeds)
            for group in groups
        ]

    def _run_one(
        self, attack: Named, names: list[str], batch: int, seed: int, budget: float | None
    ) -> bool:
        """Whether it came to its end (a time budget counts as one)."""
        whom = names[0] if len(names) == 1 else f"{len(names)} defenses"
        self.meter.start(f"{_short(attack)} on {whom}", attack.work * len(names))
        observations = [self._observe(attack, name, batch, seed) for name in names]
        start = time.perf_counter()
        try:
            ready = _prepared(attack.attack, budget, self.meter)
            results = _attack(ready, observations, (self.seed, 2, batch, seed))
            seconds = (time.perf_counter() - start) / len(names)
            runs = {
                name: scored(self.subject, result, batch, seed, seconds)
                for name, result in zip(names, results, strict=True)
                if result.status != INTERRUPTED
            }
        except Exception as error:  # an attack of the user's may raise anything: the rest is kept
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            self.attacked.note(f"`{attack.spec}` was left out on {whom}: {kind}{_one_line(error)}")
            return True
        for name, run in runs.items():
            self.attacked.runs.setdefault((name, attack.spec), []).append(run)
        if any(result.status == TIME_BUDGET for result in results):
            text = "The time budget cut attacks short: with more time they may find more."
            self.attacked.stop("time budget", text)
        return all(result.status != INTERRUPTED for result in results)

    def _observe(self, attack: Named, name: str, batch: int, seed: int) -> Observation:
        """The same message for every attack: only what it is told differs."""
        subject = self.subject
        threat = self.threat if attack.knows else replace(self.threat, mechanism="unknown")
        return observe(
            subject.model,
            subject.loss_fn,
            subject.batch(batch),
            deepcopy(self.defenses[name]),
            threat=threat,
            num_classes=subject.data.num_classes,
            input_range=subject.input_range,
            local=subject.local,
            layout=subject.layout,
            generator=numbered_stream(self.seed, 1, batch, seed),
        )


def _attack(
    attack: Attack, observations: list[Observation], seed: tuple[int, ...]
) -> list[Reconstruction]:
    """All observations at once where the attack can and the model lets it, else one by one."""
    if attack.runs_together:
        with suppress(RuntimeError):  # a layer that does not batch over candidates
            return attack.many(observations, numbered_stream(*seed))
    return [attack(observation, numbered_stream(*seed)) for observation in observations]


def _prepared(attack: Attack, budget: float | None, meter: Meter) -> Attack:
    """The attack with its time budget, telling how far it is."""
    reports_done, reports = 0, attack.reports

    def tell(step: int, steps: int, cost: float) -> None:
        nonlocal reports_done
        reports_done += 1
        meter.at(reports_done / reports)

    return attack.configured(time_budget=budget, progress=tell)


def _short(attack: Named) -> str:
    return shown_name(attack.spec)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
