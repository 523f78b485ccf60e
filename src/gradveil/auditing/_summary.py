"""Runs of one attack on one defense, summed up with intervals."""

from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Tensor

from gradveil._random import numbered_stream
from gradveil.scoring import Interval, bootstrap_interval

from ._result import AttackResult, RunResult


def attack_result(spec: str, knows_defense: bool, runs: Sequence[RunResult]) -> AttackResult:
    """Means with 95 % intervals over batches, seeds and images."""
    first, labels = runs[0], [run.label_accuracy for run in runs]
    known = [share for share in labels if share is not None]
    return AttackResult(
        attack=spec,
        knows_defense=knows_defense,
        mse=_interval(runs, lambda run: run.mse),
        mse_pixels=_interval(runs, lambda run: run.mse_pixels),
        psnr=None if first.psnr is None else _interval(runs, lambda run: run.psnr or ()),
        ssim=None if first.ssim is None else _interval(runs, lambda run: run.ssim or ()),
        label_accuracy=fmean(known) if known else None,
        seconds=fmean(run.seconds for run in runs),
        runs=tuple(runs),
        accuracy=None if first.accuracy is None else _interval(runs, lambda r: r.accuracy or ()),
    )


def _interval(
    runs: Sequence[RunResult], values: Callable[[RunResult], tuple[float, ...]]
) -> Interval:
    return bootstrap_interval(nested_runs(runs, values), generator=numbered_stream(0))


def nested_runs(
    runs: Sequence[RunResult], values: Callable[[RunResult], tuple[float, ...]]
) -> Tensor | list[list[Tensor]]:
    """Batches outside: all seeds share them. Of one batch, images, each the mean over seeds."""
    rows = {(run.batch, run.seed): torch.tensor(values(run)).double() for run in runs}
    batches = sorted({batch for batch, _ in rows})
    if len(batches) == 1:
        return torch.stack([*rows.values()]).mean(0)
    return [[row for (place, _), row in rows.items() if place == batch] for batch in batches]
