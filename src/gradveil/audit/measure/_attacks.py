"""Runs the attacks on one defense, and sums up what they reached."""

import math
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from operator import attrgetter
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
from gradveil.scoring import bootstrap_interval, score, score_table, score_tokens

from .._pictures import pictures
from .._result import AttackResult, RunResult
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
    data, truth = subject.data, subject.batch(batch)
    history = tuple((step, cost) for step, cost in result.history if math.isfinite(cost))
    run = {"batch": batch, "seed": seed, "status": result.status, "seconds": seconds}
    found: dict[str, Any] = {**run, "history": history, "label_accuracy": None}
    if subject.tokens:
        accuracy = score_tokens(result, truth[0]).accuracy
        in_place = (result.inputs != truth[0]).double().mean(1)
        wrong = 1 - accuracy
        names: dict[str, Any] = {"mse": wrong, "mse_pixels": wrong, "unmatched_mse": in_place}
        names |= {"psnr": None, "ssim": None, "accuracy": accuracy}
    else:
        scores = score(result, truth, normalization=data)
        named = ("mse", "mse_pixels", "psnr", "ssim", "unmatched_mse")
        names = {name: getattr(scores, name) for name in named}
        if data.layout is not None:
            names["accuracy"] = score_table(result, truth, data.layout).accuracy
        assert guess.pixels is not None
        matched = data.to_pixels(result.inputs[scores.assignment])
        guessed = guess.pixels[batch * subject.batch_size :][: len(matched)]
        found["mixed"] = best_mix(matched.clamp(0, 1), guessed, data.to_pixels(truth[0]))
        found["pictures"] = pictures(matched) if batch == seed == 0 else ()
        found["label_accuracy"] = scores.label_accuracy
    found |= {n: None if each is None else tuple(each.tolist()) for n, each in names.items()}
    return RunResult(**found)


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
                found = attack(observation, numbered_stream(seed, 2, batch, draw))
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
        layout=subject.data.layout,
        generator=numbered_stream(*seed),
    )


def attack_result(spec: str, knows_defense: bool, runs: Sequence[RunResult]) -> AttackResult:
    """Means with 95 % intervals over batches, seeds and images."""
    known = [run.label_accuracy for run in runs if run.label_accuracy is not None]
    names = ("mse", "mse_pixels", "psnr", "ssim", "accuracy")
    intervals: dict[str, Any] = {
        name: bootstrap_interval(nested_runs(runs, attrgetter(name)), generator=numbered_stream(0))
        if getattr(runs[0], name) is not None
        else None
        for name in names
    }
    return AttackResult(
        attack=spec,
        knows_defense=knows_defense,
        label_accuracy=fmean(known) if known else None,
        seconds=fmean(run.seconds for run in runs),
        runs=tuple(runs),
        **intervals,
    )
