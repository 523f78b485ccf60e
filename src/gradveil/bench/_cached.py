"""Benchmark of cached plans: share of the optimum during training, and cost."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from gradveil._timing import time_ratios
from gradveil.data import Dataset
from gradveil.defenses import Cached, GradientNoise, OptimalNoise
from gradveil.mechanisms import Mechanism
from gradveil.models import build_model
from gradveil.sensitivity import measure
from gradveil.theory import share_of_optimum

from ._cases import Case, reference_estimator


@dataclass(frozen=True)
class CachedRow:
    """The shares of the per-step optimum at one step of training."""

    step: int
    cached: float
    isotropic: float


@dataclass(frozen=True)
class CachedResult:
    """A training run with a cached defense."""

    refresh_every: int
    batch: int
    time_ratio: float
    """Per step on average, over one plain gradient of the same batch."""
    rows: list[CachedRow]

    @property
    def mean_share(self) -> float:
        """Over the steps that were graded."""
        return statistics.mean(row.cached for row in self.rows)


def bench_cached(
    data: Dataset,
    steps: int = 200,
    batch: int = 64,
    refresh_every: int = 10,
    grade_every: int = 7,
    reference_probes: int = 16,
    progress: Callable[[str], None] = lambda _: None,
) -> CachedResult:
    """Train the paper's CNN with Adam at 1e-3 behind `Cached(OptimalNoise)`, grading its plans.

    Grading every seventh step meets all ages of the cache, from fresh to nearly due. The reference
    has so many probes for each example of a batch of 64, more for smaller ones.
    """
    model = build_model("simple-conv-net")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    cached = Cached(OptimalNoise(0.001, cap=1e6, plan_from="private"), refresh_every)
    rows = []
    for step in range(steps):
        progress(f"step {step} of {steps}")
        case = Case("", model, *data.batch(batch * step % (len(data) - batch), batch))
        _, mechanism, sent = cached.respond(case.message, case.inputs, generator)
        assert isinstance(mechanism, Mechanism)
        if step % grade_every == 0:
            rows.append(_graded(step, case, mechanism, reference_probes, generator))
        for name, parameter in model.named_parameters():
            parameter.grad = sent[name]
        optimizer.step()
    return CachedResult(refresh_every, batch, _cost(case, cached, refresh_every), rows)


def _graded(
    step: int, case: Case, mechanism: Mechanism, probes: int, generator: torch.Generator
) -> CachedRow:
    estimator = reference_estimator(probes, len(case.inputs))
    exact = measure(case.message, case.inputs, estimator, generator=generator)
    isotropic = GradientNoise(0.001).plan(exact)
    return CachedRow(step, share_of_optimum(exact, mechanism), share_of_optimum(exact, isotropic))


def _cost(case: Case, cached: Cached, refresh_every: int) -> float:
    """The mean over one period, as the median of several periods."""
    generator = torch.Generator().manual_seed(0)

    def plain() -> None:
        for _ in range(refresh_every):
            case.plain_gradient()

    def defended() -> None:
        for _ in range(refresh_every):
            cached.backward(case.model, cross_entropy, case.inputs, case.targets, generator)

    return time_ratios(plain, {"cached": defended}, repeats=5)["cached"]
