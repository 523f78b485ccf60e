"""Audits: what leaks, what is guaranteed and what it costs, for each defense in one run."""

from gradveil.scoring import Interval

from ._audit import audit
from ._meter import Progress
from ._result import (
    AttackResult,
    AuditResult,
    BoundResult,
    DefenseResult,
    LayerResult,
    RunResult,
    Setup,
    TrainingResult,
)
from ._write import write_results

__all__ = [
    "AttackResult",
    "AuditResult",
    "BoundResult",
    "DefenseResult",
    "Interval",
    "LayerResult",
    "Progress",
    "RunResult",
    "Setup",
    "TrainingResult",
    "audit",
    "write_results",
]
