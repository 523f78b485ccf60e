"""What was found of one defense: runs of attacks summed up with intervals, and the verdict."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from gradveil._random import numbered_stream
from gradveil.catalog import spec_of
from gradveil.defenses import Defense
from gradveil.scoring import Interval, bootstrap_interval

from ._amounts import plan_of, unwrapped
from ._defense_measurement import Measurement
from ._privacy import privacy_columns
from ._result import AttackResult, DefenseResult, RunResult, TrainingResult, identity
from ._subject import Subject
from ._undefended import BlindGuess, beats_guess, blind_guess
from .report import verdict


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


def judged(
    subject: Subject,
    name: str,
    defense: Defense,
    costs: Measurement,
    training: TrainingResult | None,
    attacks: Sequence[AttackResult],
    guess: BlindGuess,
    able: bool,
) -> DefenseResult:
    """One row of an audit.

    Args:
        guess: What an attacker has who sees no message.
        able: Whether the attacks work without a defense; an attack that beats the guess on this
            defense is able, too.
    """
    leaks = any(beats_guess(attack, guess, nested_runs).works for attack in attacks)
    return DefenseResult(
        name=name,
        defense=spec_of(unwrapped(defense)),
        plan=plan_of(defense),
        training=training,
        attacks=tuple(attacks),
        verdict=verdict(
            attacks,
            float(blind_guess(subject, labels_known=False).errors.mean()),
            costs.bound,
            subject.is_image,
            costs.no_guarantee,
            able=able or leaks,
            told=costs.told_apart,
        ),
        **vars(costs),
        **identity(defense),
    )


def row_of(defense: DefenseResult, attack: AttackResult) -> dict[str, Any]:
    """One attack on one defense as a flat row, as in the table and in results.csv."""
    bound, training, told = defense.bound, defense.training, defense.told_apart
    ends = (bound and bound.mse_interval) or (None, None)
    row: dict[str, Any] = {
        "name": defense.name,
        "defense": defense.defense,
        "attack": attack.attack,
        "knows_defense": attack.knows_defense,
        "utility_first": defense.utility_first,
        "utility_second": defense.utility_second,
        "bound_mse": bound.mse if bound else None,
        "bound_mse_low": ends[0],
        "bound_mse_high": ends[1],
        "bound_trace_mse": bound.trace_mse if bound else None,
        "bound_psnr_ceiling": bound.psnr_ceiling if bound else None,
        "bound_prior": bound.prior if bound else None,
        "bound_batches": bound.batches if bound else None,
        "no_guarantee": defense.no_guarantee,
        "told_apart_candidates": told.candidates if told else None,
        "told_apart_rate": told.rate.mean if told else None,
        "told_apart_bits": told.bits.mean if told else None,
        **privacy_columns(defense.privacy),
        "loss_after": training.loss_after.mean if training else None,
        "bytes_sent": defense.bytes_sent,
        "time_ratio": defense.time_ratio,
        "label_accuracy": attack.label_accuracy,
    }
    for name in ("mse", "mse_pixels", "psnr", "ssim", "accuracy"):
        value = getattr(attack, name)
        for end in ("mean", "low", "high"):
            row[name if end == "mean" else f"{name}_{end}"] = getattr(value, end, None)
    return row
