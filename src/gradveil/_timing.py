"""Times as ratios to a baseline that is timed in the same run."""

import statistics
import time
from collections.abc import Callable, Mapping

Job = Callable[[], object]


def time_ratios(
    baseline: Job,
    contenders: Mapping[str, Job],
    repeats: int,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """The median over repetitions of each contender's time over the baseline's next to it.

    Everything runs once to warm up. Then, in each repetition, the baseline runs before each
    contender, so that both see the same state of the machine. `time.process_time` as the clock
    leaves out what other processes took.
    """
    clock = time.perf_counter if clock is None else clock
    for job in (baseline, *contenders.values()):
        job()
    ratios: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, job in contenders.items():
            before = _seconds(baseline, clock)
            ratios[name].append(_seconds(job, clock) / before)
    return {name: statistics.median(values) for name, values in ratios.items()}


def _seconds(job: Job, clock: Callable[[], float]) -> float:
    start = clock()
    job()
    return clock() - start
