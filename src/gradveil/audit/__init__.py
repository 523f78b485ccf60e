"""Audits: what leaks, what is guaranteed and what it costs; which defense to use, how strong.

Three rooms: `measure` (subject, federation, defense, strength -> point), `answer` (points and goals
-> answers) and `report`, the only one that writes sentences.

>>> import torch
>>> from torch.nn.functional import cross_entropy
>>> from gradveil import audit
>>> from gradveil.models import build_model
>>> data = torch.ones(2, 4), torch.tensor([1, 0])
>>> subject = audit.Subject(build_model("mlp", sizes=[4, 6, 2]), cross_entropy, data)
>>> settings = audit.Settings(["gradient-noise(0.1)"], attacks=[], training_seeds=0)
>>> result: audit.AuditResult = audit.run(subject, settings=settings)
>>> result.stopped, [defense.name for defense in result.defenses]
(None, ['no defense', 'noise'])
"""

from gradveil.federated import Federation

from ._result import AuditResult, Releases
from ._run import run
from ._settings import Goal, Settings, default_attacks
from ._subject import Subject, checked_subject
from .measure import BoundPoint, BoundStudy, Progress, draw_sweep, parse_defense
from .report import write_results

__all__ = [
    "AuditResult",
    "Federation",
    "Goal",
    "Releases",
    "Settings",
    "Subject",
    "run",
    "write_results",
]
