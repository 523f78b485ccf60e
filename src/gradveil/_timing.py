"""Times as ratios to a baseline that is timed in the same run."""

import statistics
import time
from collections.abc import Callable, Mapping

Job = Callable[[], object]


def time_ratios(baseline: Job, contenders: Mapping[str, Job], repeats: int) -> dict[str, float]:
    """The median over repetitions of each contender's time over the baseline's next to it.

    Everything runs once to warm up. Then, in each repetition, the baseline runs before each
    contender, so that both see the same state of the machine.
    """
    for job in (baseline, *contenders.values()):
        job()
    ratios: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, job in contenders.items():
            before = _seconds(baseline)
            ratios[name].append(_seconds(job) / before)
    return {name: statistics.median(values) for name, values in ratios.items()}


def _seconds(job: Job) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start
