"""Costs and qualities, measured side by side in one run."""

from gradveil._timing import time_ratios

from ._attack import AttackRow, attack_contenders, bench_attack
from ._cached import CachedResult, bench_cached
from ._cases import Case, train
from ._federated import FederatedRow, bench_federated, round_contenders
from ._memory import PeakMemory
from ._paper import PaperAlgorithm
from ._sensitivity import SensitivityRow, bench_sensitivity

__all__ = [
    "AttackRow",
    "CachedResult",
    "Case",
    "FederatedRow",
    "PaperAlgorithm",
    "PeakMemory",
    "SensitivityRow",
    "attack_contenders",
    "bench_attack",
    "bench_cached",
    "bench_federated",
    "bench_sensitivity",
    "round_contenders",
    "time_ratios",
    "train",
]
