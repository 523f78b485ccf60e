"""Our attacks beside a peer's method, on the same batches and in the same time."""

from ._bench import AgainstSettings, bench_against
from ._cases import AGAINST_CASES, AgainstCase, against_cases
from ._inverse_fed import InverseFed
from ._pictures import AgainstPictures
from ._rows import AgainstRow
from ._speed import SPEED_CASES, SpeedRow, bench_speed

__all__ = [
    "AGAINST_CASES",
    "SPEED_CASES",
    "AgainstCase",
    "AgainstPictures",
    "AgainstRow",
    "AgainstSettings",
    "InverseFed",
    "SpeedRow",
    "against_cases",
    "bench_against",
    "bench_speed",
]
