"""The two kinds of audits: curves over strengths with goals, and one strength of each defense."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from torch import nn

from gradveil.attacks import LocalSteps, ThreatModel
from gradveil.auditing import (
    QUICK_DEFENSES,
    QUICK_STEPS,
    STRENGTHS,
    AuditResult,
    Goal,
    Progress,
    Releases,
    RequestedDefense,
    Training,
    audit,
    default_attacks,
    quick_attack,
    recommend,
)
from gradveil.data import Dataset
from gradveil.messages import LossFunction
from gradveil.studies.runner import Engine

QUICK_TRAINING = Training(rounds=10, seeds=2)
QUICK_STRENGTHS = 3


class Match(str, Enum):
    """The quantity that is equal for all defenses of an audit."""

    utility = "utility"
    scale = "scale"
    error = "error"
    training = "training"


@dataclass(frozen=True)
class Asked:
    """What both kinds of audits take."""

    model: nn.Module
    loss_fn: LossFunction
    private: Any
    public: Any
    samples: Dataset
    defenses: list[Any] | None
    attacks: list[Any] | None
    steps: int | None
    threat: ThreatModel
    local: LocalSteps | None
    batches: int
    seeds: int
    seed: int
    time_budget: float | None
    releases: Releases
    output: str | int | None
    names: dict[str, str]

    @property
    def options(self) -> dict[str, Any]:
        """As options of both functions."""
        return {
            "public": self.public,
            "normalization": self.samples,
            "output": self.output,
            "batches": self.batches,
            "seeds": self.seeds,
            "threat": self.threat,
            "local": self.local,
            "time_budget": self.time_budget,
            "seed": self.seed,
            "names": self.names,
            **vars(self.releases),
        }


def is_comparison(
    match: Match | None,
    scale: float | None,
    ratio: float | None,
    requested: Sequence[RequestedDefense],
) -> bool:
    """Whether defenses are compared at one strength each: asked for, or all strengths given."""
    asked = any(value is not None for value in (match, scale, ratio))
    defending = [one for one in requested if not one.defense.is_undefended]
    return asked or (bool(requested) and not any(one.open for one in defending))


def quickly(
    quick: bool, rounds: int | None, clients: int | None, optimizer: str | None, lr: float | None
) -> Training:
    """The training, with what the user said of it."""
    usual = QUICK_TRAINING if quick else Training()
    return Training(
        usual.rounds if rounds is None else rounds,
        usual.clients if clients is None else clients,
        usual.seeds,
        optimizer,
        lr,
    )


def compare(
    asked: Asked,
    match: Match,
    scale: float | None,
    ratio: float | None,
    quick: bool,
    progress: Progress,
) -> AuditResult:
    """One strength of each defense, what `match` names being equal."""
    defenses, attacks, steps = asked.defenses, asked.attacks, asked.steps
    if quick:
        attacks = attacks or [quick_attack(steps or QUICK_STEPS, asked.samples)]
        steps = QUICK_STEPS if steps is None and not asked.samples.tokens else steps
        defenses = defenses or [*QUICK_DEFENSES]
    return audit(
        asked.model,
        asked.loss_fn,
        asked.private,
        defenses,
        attacks,
        match=match.value,
        scale=scale,
        ratio=ratio,
        steps=steps,
        training=not quick,
        progress=progress,
        **asked.options,
    )


def curves(
    asked: Asked,
    goals: Sequence[Goal],
    strengths: int | None,
    training: Training,
    engine: Callable[..., Engine],
    store: Path,
    quick: bool,
    progress: Progress,
) -> AuditResult:
    """Every defense over strengths, and the settings for the goals."""
    defenses, attacks, steps = asked.defenses, asked.attacks, asked.steps
    usual = QUICK_STRENGTHS if quick else STRENGTHS
    if quick:
        attacks = attacks or default_attacks(steps or QUICK_STEPS, asked.samples)[-1:]
        steps = QUICK_STEPS if steps is None and not asked.samples.tokens else steps
        defenses = defenses or [name for name in QUICK_DEFENSES if name != "no-defense"]
    return recommend(
        asked.model,
        asked.loss_fn,
        asked.private,
        defenses,
        attacks,
        goals=goals,
        strengths=usual if strengths is None else strengths,
        training=training,
        steps=steps,
        folder=store,
        engine=engine,
        progress=progress,
        **asked.options,
    )
