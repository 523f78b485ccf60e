"""One attack's result beside the truth."""

import math
from typing import Any

from torch import Tensor

from gradveil.attacks import Reconstruction
from gradveil.scoring import score, score_table, score_tokens

from .._result import RunResult
from .._subject import Subject
from .._undefended import BlindGuess
from ..report import pictures


def scored(
    subject: Subject,
    result: Reconstruction,
    batch: int,
    seed: int,
    seconds: float,
    guess: BlindGuess,
) -> RunResult:
    """The errors of each example, and for tokens and tables with categories the share found."""
    scores = _of_tokens if subject.tokens else _of_numbers
    return RunResult(
        batch=batch,
        seed=seed,
        status=result.status,
        seconds=seconds,
        history=tuple((step, cost) for step, cost in result.history if math.isfinite(cost)),
        **scores(subject, result, batch, guess, with_pictures=batch == 0 and seed == 0),
    )


def best_mix(rebuilt: Tensor, guess: Tensor, truth: Tensor) -> tuple[float, ...]:
    """‖g + w (x̂ - g) - x‖² of each example, per entry, with the w in [0, 1] that is best for all.

    An attacker who knows how much to trust a reconstruction x̂ pulls it towards what is guessed
    without it. The weight is that of an oracle; one number for a batch gives little away.

    >>> import torch
    >>> truth, guess = torch.tensor([[1.0, -1.0]]), torch.zeros(1, 2)
    >>> [round(error, 6) for error in best_mix(torch.tensor([[3.0, 1.0]]), guess, truth)]
    [0.8]
    """
    step, needed = (rebuilt - guess).double(), (truth - guess).double()
    power = float(step.square().sum())
    weight = min(1.0, max(0.0, float((step * needed).sum()) / power)) if power else 0.0
    return tuple((weight * step - needed).square().flatten(1).mean(1).tolist())


def _of_numbers(
    subject: Subject, result: Reconstruction, batch: int, guess: BlindGuess, with_pictures: bool
) -> dict[str, Any]:
    data, truth = subject.data, subject.batch(batch)
    scores = score(result, truth, normalization=data)
    matched = data.to_pixels(result.inputs[scores.assignment])
    accuracy = None
    if subject.layout is not None:
        accuracy = tuple(score_table(result, truth, subject.layout).accuracy.tolist())
    return {
        "mixed": _mixed(subject, matched, batch, guess),
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
    subject: Subject, result: Reconstruction, batch: int, guess: BlindGuess, with_pictures: bool
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


def _mixed(subject: Subject, rebuilt: Tensor, batch: int, guess: BlindGuess) -> tuple[float, ...]:
    if guess.pixels is None:
        return ()
    truth = subject.data.to_pixels(subject.batch(batch)[0])
    first = batch * subject.batch_size
    guessed = guess.pixels[first : first + len(truth)]
    return best_mix(rebuilt.clamp(0, 1), guessed, truth)
