"""Runs the attacks on one defense, the exact one too, and sums up what they reached."""

import base64
import io
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Any

import torch
from torch import Generator, Tensor

from gradveil._checks import task_of
from gradveil._random import numbered_stream
from gradveil.attacks import (
    INTERRUPTED,
    IdentificationReport,
    Observation,
    Reconstruction,
    ThreatModel,
    identify_trials,
    observe,
)
from gradveil.defenses import Defense
from gradveil.messages import trainable_parameters
from gradveil.scoring import (
    AgainstGuess,
    Interval,
    against_guess,
    bootstrap_interval,
    gain_over_guess,
    score,
    score_table,
    score_tokens,
)

from .._result import CANDIDATES, AttackResult, RunResult, ToldApart
from .._subject import Audited, Batch
from ._laboratory import BlindGuess, Laboratory

NAMES = ("mse", "mse_pixels", "psnr", "ssim", "accuracy")
"""Of the scores that each example has."""


def _scored(
    laboratory: Laboratory, result: Reconstruction, batch: int, seed: int, seconds: float
) -> RunResult:
    """The errors of each example, and for tokens and tables with categories the share found."""
    subject, data, guess = laboratory.subject, laboratory.subject.data, laboratory.guess.pixels
    truth, scores = subject.batch(batch), dict.fromkeys(NAMES)
    kept: dict[str, Any] = {"label_accuracy": None}
    if guess is None:
        accuracy = score_tokens(result, truth[0]).accuracy
        scores |= {"accuracy": accuracy, "mse": 1 - accuracy, "mse_pixels": 1 - accuracy}
    else:
        found = score(result, truth, normalization=data)
        scores |= {name: getattr(found, name, None) for name in NAMES}
        if data.layout is not None:
            scores["accuracy"] = score_table(result, truth, data.layout).accuracy
        matched = data.to_pixels(result.inputs[found.assignment])
        guessed = guess[batch * subject.batch_size :][: len(matched)]
        kept["mixed"] = best_mix(matched.clamp(0, 1), guessed, data.to_pixels(truth[0]))
        kept["pictures"] = pictures(matched) if batch == seed == 0 else ()
        kept["label_accuracy"] = found.label_accuracy
    kept |= {n: None if each is None else tuple(each.tolist()) for n, each in scores.items()}
    return RunResult(batch, seed, result.status, seconds, **kept)


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


def run_attacks(laboratory: Laboratory, defense: Defense) -> tuple[list[AttackResult], list[str]]:
    """Every attack on every batch and seed: those that gave something, and notes on the others.

    Each batch is defended as often as there are seeds: the same message for every attack, and those
    that do not use the defense are not told of it.
    """
    settings, results, notes = laboratory.settings, [], []
    for spec, attack in laboratory.attacks.items():
        threat = settings.threat
        if attack.knows_defense and attack.needs_defense and threat.mechanism == "unknown":
            notes.append(f"`{spec}` was left out: the threat model does not tell the mechanism.")
            continue
        threat = threat if attack.knows_defense else replace(threat, mechanism="unknown")
        runs = []
        for batch, draw in product(range(laboratory.subject.batches), range(settings.seeds)):
            stream = numbered_stream(settings.seed, 1, batch, draw)
            observation = _observed(laboratory.subject, defense, threat, stream, batch)
            start = time.perf_counter()
            try:
                found = attack(observation, numbered_stream(settings.seed, 2, batch, draw))
                if found.status == INTERRUPTED:
                    raise KeyboardInterrupt  # what is not whole is not kept
                seconds = time.perf_counter() - start
                runs.append(_scored(laboratory, found, batch, draw, seconds))
            except Exception as error:  # one of the user's may raise anything: the rest is kept
                kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                reason = " ".join(str(error).split())
                notes.append(f"`{spec}` was left out on {defense.about.label}: {kind}{reason}")
        if runs:
            results.append(attack_result(spec, attack.knows_defense, runs))
    return results, [*dict.fromkeys(notes)]


def _observed(
    subject: Audited, defense: Defense, threat: ThreatModel, stream: Generator, batch: int
) -> Observation:
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
        generator=stream,
    )


def attack_result(spec: str, knows_defense: bool, runs: Sequence[RunResult]) -> AttackResult:
    """Means with 95 % intervals over batches, seeds and images."""
    known = [run.label_accuracy for run in runs if run.label_accuracy is not None]

    def interval(name: str) -> Any:
        values = [getattr(run, name) for run in runs]
        return None if values[0] is None else _interval(runs, values)

    return AttackResult(
        attack=spec,
        knows_defense=knows_defense,
        label_accuracy=fmean(known) if known else None,
        seconds=fmean(run.seconds for run in runs),
        runs=tuple(runs),
        **{name: interval(name) for name in NAMES},
    )


def _nested(
    runs: Sequence[RunResult], values: Sequence[Sequence[float]]
) -> Tensor | list[list[Tensor]]:
    """One value of each image, for each run. Batches are outside: all seeds share them. Of one
    batch it is images, each the mean over seeds."""
    rows = [torch.tensor(row).double() for row in values]
    batches = sorted({run.batch for run in runs})
    if len(batches) == 1:
        return torch.stack(rows).mean(0)
    pairs = [*zip(runs, rows, strict=True)]
    return [[row for run, row in pairs if run.batch == batch] for batch in batches]


def _interval(runs: Sequence[RunResult], values: Sequence[Sequence[float]]) -> Interval:
    return bootstrap_interval(_nested(runs, values), generator=numbered_stream(0))


def beside_guess(attack: AttackResult, guess: BlindGuess) -> tuple[Interval, AgainstGuess]:
    """The squared error over the guess's, of the best mix of both; and the gain over the guess.

    Example by example: one with no further error than the guess has 1, whether it is easy to guess
    or not.
    """
    errors = guess.errors.double().clamp(min=1e-12).cpu()
    shares, gains = [], []
    for run in attack.runs:
        guessed = errors[run.batch * len(run.mse_pixels) :][: len(run.mse_pixels)]
        mixed = torch.tensor(run.mixed or run.mse_pixels, dtype=torch.float64)
        shares.append((mixed / guessed).tolist())
        gains.append(gain_over_guess(torch.tensor(run.mse_pixels), guessed).tolist())
    gained = against_guess(_nested(attack.runs, gains), numbered_stream(0))
    return _interval(attack.runs, shares), gained


FEWEST = 8
"""Candidates are of one class where a class has at least so many."""

TRIALS, LEAST_TRIALS = 128, 6
"""Messages in all, and for a very large model. A plan that depends on the batch is made for each
message and candidate: then eight times fewer."""

MOST_WORK = 2**29
"""Trials times candidates times entries of the message: some seconds."""

STREAM = 5
"""The place of its random numbers in those of an audit."""


def told_apart(laboratory: Laboratory, defense: Defense) -> tuple[ToldApart | None, list[str]]:
    """What the exact attacker reaches; `None` where it cannot be computed. With what to note.

    Candidates are public examples where there are any, of one class where one has enough, and the
    same for all defenses. One that does not state what it does as a mechanism with a likelihood
    has no such number.
    """
    subject = laboratory.subject
    count, one_class = candidate_choice(subject.known[1], subject.batch_size)
    if count < 2:
        return None, []
    entries = sum(p.numel() for p in trainable_parameters(subject.model).values())
    trials = TRIALS // 8 if defense.about.private else TRIALS
    trials = max(LEAST_TRIALS, min(trials, MOST_WORK // (count * entries)))
    try:
        report = identified(
            subject,
            defense,
            subject.known,
            candidates=count,
            one_class=one_class,
            trials=trials,
            per_draw=-(-trials // 2),
            generator=numbered_stream(laboratory.settings.seed, STREAM),
        )
    except TypeError:  # no mechanism, or one without a likelihood
        why = "the likelihood of what it sends is not known exactly"
        return None, [f"Behind {defense.about.label} nobody tells candidates apart here: {why}."]
    return ToldApart(report.candidates, trials, report.rate, report.bits, one_class), []


def identified(
    subject: Audited, defense: Defense, examples: Batch, **options: Any
) -> IdentificationReport:
    """The exact attacker's trials with candidates from these examples (`identify_trials`)."""
    return identify_trials(
        subject.model,
        subject.loss_fn,
        examples,
        defense,
        num_classes=subject.data.num_classes,
        batch_size=subject.batch_size,
        local=subject.local,
        **options,
    )


def candidate_choice(targets: Tensor, batch_size: int, most: int = CANDIDATES) -> tuple[int, bool]:
    """How many candidates, and whether all of one class; other targets have none."""
    left = len(targets) - (batch_size - 1)
    if task_of(targets) == "classification":
        largest = min(int(torch.bincount(targets).max()), left)
        if largest >= FEWEST:
            return min(most, largest), True
    return min(most, left), False


def pictures(pixels: Tensor) -> tuple[str, ...]:
    """One PNG for each image of shape (channels, height, width) in [0, 1] units.

    Nothing for inputs that are not images of one or three channels.
    """
    modes = {1: "L", 3: "RGB"}
    if pixels.dim() != 4 or pixels.shape[1] not in modes:
        return ()
    from PIL import Image

    found = []
    for image in (pixels.detach().clamp(0, 1) * 255).round().byte().movedim(1, -1).cpu():
        size, file = (image.shape[1], image.shape[0]), io.BytesIO()
        raw = bytes(image.flatten().tolist())
        Image.frombytes(modes[image.shape[-1]], size, raw).save(file, "PNG")
        found.append(base64.b64encode(file.getvalue()).decode())
    return tuple(found)
