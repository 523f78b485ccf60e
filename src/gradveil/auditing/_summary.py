"""Runs of one attack on one defense, summed up with intervals."""

from collections.abc import Callable, Sequence
from statistics import fmean

import torch

from gradveil.attacks import bootstrap_interval

from ._measure_one import seeded
from ._result import AttackResult, Estimate, RunResult


def attack_result(spec: str, knows_defense: bool, runs: Sequence[RunResult]) -> AttackResult:
    """Means with bootstrap intervals over seeds, batches and images."""
    first, labels = runs[0], [run.label_accuracy for run in runs]
    known = [share for share in labels if share is not None]
    return AttackResult(
        attack=spec,
        knows_defense=knows_defense,
        mse=_estimate(runs, lambda run: run.mse),
        mse_pixels=_estimate(runs, lambda run: run.mse_pixels),
        psnr=None if first.psnr is None else _estimate(runs, lambda run: run.psnr or ()),
        ssim=None if first.ssim is None else _estimate(runs, lambda run: run.ssim or ()),
        label_accuracy=fmean(known) if known else None,
        seconds=fmean(run.seconds for run in runs),
        runs=tuple(runs),
    )


def _estimate(
    runs: Sequence[RunResult], values: Callable[[RunResult], tuple[float, ...]]
) -> Estimate:
    seeds = sorted({run.seed for run in runs})
    nested = [
        [torch.tensor(values(run), dtype=torch.float64) for run in runs if run.seed == seed]
        for seed in seeds
    ]
    found = bootstrap_interval(nested, generator=seeded(0))
    return Estimate(found.mean, found.low, found.high)
