"""Audits: what leaks, what is guaranteed and what it costs, for each defense in one run.

>>> import torch
>>> from torch.nn.functional import cross_entropy
>>> from gradveil.auditing import AuditResult, audit
>>> from gradveil.models import build_model
>>> model, private = build_model("mlp", sizes=[4, 6, 2]), (torch.ones(1, 4), torch.tensor([1]))
>>> result: AuditResult = audit(model, cross_entropy, private, ["gradient-noise(0.1)"], [])
>>> result.complete, [defense.name for defense in result.defenses]
(True, ['noise'])
"""

from gradveil.scoring import Interval

from ._amounts import RequestedDefense, requested_defenses
from ._audit import audit
from ._bound_study import BoundPoint, BoundStudy, draw_sweep
from ._defaults import (
    QUICK_DEFENSES,
    QUICK_STEPS,
    default_attacks,
    quick_attack,
)
from ._frontier import Answer, Curve, Frontier, Leak, Point
from ._meter import Progress
from ._privacy import PrivacyResult, Releases
from ._recommend import STRENGTHS, Goal, Training, recommend
from ._result import (
    AttackResult,
    AuditResult,
    BoundResult,
    DefenseResult,
    LayerResult,
    RunResult,
    Setup,
    StopReason,
    TrainingResult,
)
from ._settings import check_attacks, check_settings
from ._subject import make_subject
from ._told_apart import ToldApart
from ._undefended import Undefended
from .report import write_results

__all__ = [
    "QUICK_DEFENSES",
    "QUICK_STEPS",
    "STRENGTHS",
    "Answer",
    "AttackResult",
    "AuditResult",
    "BoundPoint",
    "BoundResult",
    "BoundStudy",
    "Curve",
    "DefenseResult",
    "Frontier",
    "Goal",
    "Interval",
    "LayerResult",
    "Leak",
    "Point",
    "PrivacyResult",
    "Progress",
    "Releases",
    "RequestedDefense",
    "RunResult",
    "Setup",
    "StopReason",
    "ToldApart",
    "Training",
    "TrainingResult",
    "Undefended",
    "audit",
    "check_attacks",
    "check_settings",
    "default_attacks",
    "draw_sweep",
    "make_subject",
    "quick_attack",
    "recommend",
    "requested_defenses",
    "write_results",
]
