"""One attack's result beside the truth."""

import math
from typing import Any

from gradveil.attacks import Reconstruction
from gradveil.scoring import score, score_table, score_tokens

from .._result import RunResult
from .._subject import Subject
from ..report import pictures


def scored(
    subject: Subject, result: Reconstruction, batch: int, seed: int, seconds: float
) -> RunResult:
    """The errors of each example, and for tokens and tables with categories the share found."""
    scores = _of_tokens if subject.tokens else _of_numbers
    return RunResult(
        batch=batch,
        seed=seed,
        status=result.status,
        seconds=seconds,
        history=tuple((step, cost) for step, cost in result.history if math.isfinite(cost)),
        **scores(subject, result, batch, with_pictures=batch == 0 and seed == 0),
    )


def _of_numbers(
    subject: Subject, result: Reconstruction, batch: int, with_pictures: bool
) -> dict[str, Any]:
    data, truth = subject.data, subject.batch(batch)
    scores = score(result, truth, normalization=data)
    matched = data.to_pixels(result.inputs[scores.assignment])
    accuracy = None
    if subject.layout is not None:
        accuracy = tuple(score_table(result, truth, subject.layout).accuracy.tolist())
    return {
        "mse": tuple(scores.mse.tolist()),
        "mse_pixels": tuple(scores.mse_pixels.tolist()),
        "psnr": None if scores.psnr is None else tuple(scores.psnr.tolist()),
        "ssim": None if scores.ssim is None else tuple(scores.ssim.tolist()),
        "unmatched_mse": tuple(scores.unmatched_mse.tolist()),
        "label_accuracy": scores.label_accuracy,
        "pictures": pictures(matched) if with_pictures else (),
        "accuracy": accuracy,
    }


def _of_tokens(
    subject: Subject, result: Reconstruction, batch: int, with_pictures: bool
) -> dict[str, Any]:
    truth, _ = subject.batch(batch)
    accuracy = score_tokens(result, truth).accuracy
    wrong = tuple((1 - accuracy).tolist())
    in_place = (result.inputs != truth).double().mean(1)
    return {
        "mse": wrong,
        "mse_pixels": wrong,
        "psnr": None,
        "ssim": None,
        "unmatched_mse": tuple(in_place.tolist()),
        "label_accuracy": None,
        "accuracy": tuple(accuracy.tolist()),
    }
