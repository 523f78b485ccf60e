"""Benchmarks: costs and qualities, measured side by side in one run."""

from gradveil._timing import time_ratios

from ._against import (
    AGAINST_CASES,
    SPEED_CASES,
    AgainstCase,
    AgainstPictures,
    AgainstRow,
    AgainstSettings,
    InverseFed,
    SpeedRow,
    against_cases,
    bench_against,
    bench_speed,
)
from ._attack import AttackRow, attack_contenders, bench_attack
from ._attack_chart import draw_attacks
from ._cached import CachedResult, bench_cached
from ._cases import Case, large_cases, paper_cases, train, update_cases
from ._chart import draw_sensitivity
from ._client_step import step_contenders, step_ratios
from ._federated import FederatedRow, bench_federated, bench_large_clients, round_contenders
from ._memory import PeakMemory
from ._paper import PaperAlgorithm
from ._private import PrivateRow, bench_private
from ._sensitivity import SensitivityRow, bench_sensitivity, contenders

__all__ = [
    "AGAINST_CASES",
    "SPEED_CASES",
    "AgainstCase",
    "AgainstPictures",
    "AgainstRow",
    "AgainstSettings",
    "AttackRow",
    "CachedResult",
    "Case",
    "FederatedRow",
    "InverseFed",
    "PaperAlgorithm",
    "PeakMemory",
    "PrivateRow",
    "SensitivityRow",
    "SpeedRow",
    "against_cases",
    "attack_contenders",
    "bench_against",
    "bench_attack",
    "bench_cached",
    "bench_federated",
    "bench_large_clients",
    "bench_private",
    "bench_sensitivity",
    "bench_speed",
    "contenders",
    "draw_attacks",
    "draw_sensitivity",
    "large_cases",
    "paper_cases",
    "round_contenders",
    "step_contenders",
    "step_ratios",
    "time_ratios",
    "train",
    "update_cases",
]
