"""Benchmark of sensitivity estimators: share of the optimum, and cost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from gradveil._timing import time_ratios
from gradveil.defenses import Defense, GradientNoise, OptimalNoise
from gradveil.mechanisms import Mechanism
from gradveil.messages import GradientMessage
from gradveil.sensitivity import Moments, PerExample, Sketch
from gradveil.theory import share_of_optimum

from ._cases import Case
from ._memory import PeakMemory
from ._paper import PaperAlgorithm


@dataclass(frozen=True)
class SensitivityRow:
    """One estimator on one model and batch; ratios are to one plain gradient of the same batch."""

    model: str
    batch: int
    estimator: str
    time_ratio: float
    share_of_optimum: float | None
    peak_memory_ratio: float
    extra_parameter_tensors: float
    """Peak memory beyond the plain gradient's, in tensors of the size of all parameters."""


def contenders() -> dict[str, Defense]:
    """Everything counts: gradient, sensitivities, plan and noise."""

    def noise(estimator: object, granularity: str = "parameter") -> OptimalNoise:
        return OptimalNoise(
            0.1,
            cap=1e6,
            estimator=estimator,  # type: ignore[arg-type]
            granularity=granularity,
            plan_from="private",
        )

    return {
        "isotropic noise": GradientNoise(0.1),
        "paper's algorithm, 10 probes": noise(PaperAlgorithm()),
        "sketch, 10 probes": noise(Sketch(10)),
        "per example, 1 probe": noise(PerExample(1)),
        "per example, 4 probes": noise(PerExample(4)),
        "auto": noise("auto"),
        "auto, one level per layer": noise("auto", "layer"),
    }


def bench_sensitivity(
    cases: Iterable[Case],
    defenses: dict[str, Defense],
    repeats: int = 5,
    draws: int = 5,
    reference_probes: int = 16,
    progress: Callable[[str], None] = lambda _: None,
) -> list[SensitivityRow]:
    """A row for each case and defense.

    Args:
        cases: Models and batches.
        defenses: By name; each runs as a client would call it.
        repeats: Repetitions of the timing, interleaved; medians are reported.
        draws: Random seeds over which the share of the optimum is averaged.
        reference_probes: Probes for each example of a batch of 64, more for smaller ones, that
            stand for exact sensitivities.
        progress: Told the name of each case when it starts.
    """
    rows = []
    for case in cases:
        progress(f"{case.name}, batch of {len(case.inputs)}")
        reference = case.reference(reference_probes) if case.graded else None
        fitting = _fitting(case, defenses)
        jobs = {name: _job(case, defense) for name, defense in fitting.items()}
        ratios = time_ratios(case.plain_gradient, jobs, repeats)
        plain = _peak(case.plain_gradient)
        size = sum(4 * value.numel() for value in case.message.parameters.values())
        for name, defense in fitting.items():
            peak = _peak(jobs[name])
            rows.append(
                SensitivityRow(
                    model=case.name,
                    batch=len(case.inputs),
                    estimator=name,
                    time_ratio=ratios[name],
                    share_of_optimum=_share(case, defense, reference, draws),
                    peak_memory_ratio=peak / plain,
                    extra_parameter_tensors=(peak - plain) / size,
                )
            )
    return rows


def _fitting(case: Case, defenses: dict[str, Defense]) -> dict[str, Defense]:
    """The defenses whose estimator can measure the case's message; on large models only "auto"."""
    if not case.graded:
        return {name: d for name, d in defenses.items() if d.estimator == "auto"}
    if isinstance(case.message, GradientMessage):
        return defenses
    limited = (PaperAlgorithm, PerExample)
    return {n: d for n, d in defenses.items() if not isinstance(d.estimator, limited)}


def _job(case: Case, defense: Defense) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    return lambda: defense(case.message, case.inputs, generator)


def _peak(job: Callable[[], object]) -> int:
    memory = PeakMemory()
    with memory:
        job()
    return memory.peak


def _share(case: Case, defense: Defense, reference: Moments | None, draws: int) -> float | None:
    if reference is None:
        return None
    shares = []
    for seed in range(draws if defense.needs_sensitivities else 1):
        generator = torch.Generator().manual_seed(seed)
        mechanism = defense.respond(case.message, case.inputs, generator).mechanism
        assert isinstance(mechanism, Mechanism)
        shares.append(share_of_optimum(reference, mechanism))
    return sum(shares) / len(shares)
