"""Runs the attacks on one defense, and sums up what they reached."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from statistics import fmean
from typing import Any

from torch import Tensor

from gradveil._random import numbered_stream
from gradveil.attacks import (
    INTERRUPTED,
    Attack,
    Observation,
    Reconstruction,
    ThreatModel,
    observe,
)
from gradveil.defenses import Defense
from gradveil.scoring import Interval, bootstrap_interval, score, score_table, score_tokens

from .._pictures import pictures
from .._result import (
    AttackResult,
    RunResult,
)
from .._subject import Audited
from ._guess import BlindGuess, nested_runs


def scored(
    subject: Audited,
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
    subject: Audited, result: Reconstruction, batch: int, guess: BlindGuess, with_pictures: bool
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
    subject: Audited, result: Reconstruction, batch: int, guess: BlindGuess, with_pictures: bool
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


def _mixed(subject: Audited, rebuilt: Tensor, batch: int, guess: BlindGuess) -> tuple[float, ...]:
    if guess.pixels is None:
        return ()
    truth = subject.data.to_pixels(subject.batch(batch)[0])
    first = batch * subject.batch_size
    guessed = guess.pixels[first : first + len(truth)]
    return best_mix(rebuilt.clamp(0, 1), guessed, truth)


def run_attacks(
    subject: Audited,
    defense: Defense,
    attacks: Mapping[str, Attack],
    threat: ThreatModel,
    seeds: int,
    seed: int,
    guess: BlindGuess,
) -> tuple[list[AttackResult], list[str]]:
    """Every attack on every batch and seed: those that gave something, and notes on the others.

    Args:
        subject: Model and data.
        defense: With its plan made.
        attacks: By specification.
        threat: What attackers are granted; those that do not use the defense are not told of it.
        seeds: How many times each batch is defended and attacked.
        seed: Of everything random.
        guess: What an attacker has who sees no message.
    """
    results, notes = [], []
    for spec, attack in attacks.items():
        if attack.knows_defense and attack.needs_defense and threat.mechanism == "unknown":
            notes.append(f"`{spec}` was left out: the threat model does not tell the mechanism.")
            continue
        told = threat if attack.knows_defense else replace(threat, mechanism="unknown")
        places = [(batch, draw) for batch in range(subject.batches) for draw in range(seeds)]
        runs = []
        for batch, draw in places:
            observation = _observed(subject, defense, told, (seed, 1, batch, draw), batch)
            start = time.perf_counter()
            try:
                found = _attack(attack, observation, (seed, 2, batch, draw))
                if found.status == INTERRUPTED:
                    raise KeyboardInterrupt  # what is not whole is not kept
                seconds = time.perf_counter() - start
                runs.append(scored(subject, found, batch, draw, seconds, guess))
            except Exception as error:  # one of the user's may raise anything: the rest is kept
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                reason = " ".join(str(error).split())
                notes.append(f"`{spec}` was left out on {defense.about.label}: {kind}{reason}")
        if runs:
            results.append(attack_result(spec, attack.knows_defense, runs))
    return results, [*dict.fromkeys(notes)]


def _observed(
    subject: Audited, defense: Defense, threat: ThreatModel, seed: tuple[int, ...], batch: int
) -> Observation:
    """The same message for every attack: only what it is told differs."""
    return observe(
        subject.model,
        subject.loss_fn,
        subject.batch(batch),
        deepcopy(defense),
        threat=threat,
        num_classes=subject.data.num_classes,
        input_range=subject.input_range,
        local=subject.local,
        layout=subject.layout,
        generator=numbered_stream(*seed),
    )


def _attack(attack: Attack, observation: Observation, seed: tuple[int, ...]) -> Reconstruction:
    """As one of many where the attack can and the model lets it: the bytes are those of many."""
    if attack.runs_together:
        with suppress(RuntimeError):  # a layer that does not batch over candidates
            return attack.many([observation], numbered_stream(*seed))[0]
    return attack(observation, numbered_stream(*seed))


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
