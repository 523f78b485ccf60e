"""What one guesses of the private examples without any message, and who is better."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import numbered_stream
from gradveil.scoring import AgainstGuess, against_guess, gain_over_guess

from .._result import AttackResult, RunResult, Undefended
from .._subject import Audited

FEWEST = 2
"""Public examples of a class from which on their mean is a guess."""


@dataclass(frozen=True)
class BlindGuess:
    """A guess of every private example."""

    name: str
    errors: Tensor
    """Squared, of each private example, in [0, 1] units."""
    pixels: Tensor | None = None
    """What is guessed, in [0, 1] units; `None` for tokens."""


def blind_guess(subject: Audited, labels_known: bool) -> BlindGuess:
    """The mean of the public examples, or of those of the same class where that is nearer.

    Without public examples the mean of the other private ones; of a single one, mid-grey.
    """
    data, public = subject.data, subject.public
    if subject.tokens:
        return _of_tokens(subject)
    if public is None:
        return _without_public(subject)
    count = len(public[0])
    guesses = [(f"the mean of {count} public examples", subject.guess.expand_as(data.inputs))]
    by_class = _class_means(subject) if labels_known else None
    if by_class is not None:
        guesses.append((f"the mean of its class among {count} public examples", by_class))
    rated = [_rated(subject, name, guess) for name, guess in guesses]
    return min(rated, key=lambda guess: float(guess.errors.mean()))


def _class_means(subject: Audited) -> Tensor | None:
    """Of the class of each private example; `None` where a class has too few public examples."""
    assert subject.public is not None
    inputs, targets = subject.public
    own = subject.data.targets
    if subject.task != "classification":
        return None
    members = {int(label): inputs[targets == label] for label in own.unique()}
    if any(len(group) < FEWEST for group in members.values()):
        return None
    return torch.stack([members[int(label)].mean(0) for label in own])


def _without_public(subject: Audited) -> BlindGuess:
    inputs = subject.data.inputs
    count = len(inputs)
    if count > 1:
        others = (inputs.sum(0) - inputs) / (count - 1)
        return _rated(subject, "the mean of the other private examples", others)
    grey = torch.full_like(inputs, 0.5)
    pixels = subject.data.to_pixels(inputs).clamp(0, 1)
    return BlindGuess("mid-grey", (pixels - grey).square().flatten(1).mean(1), grey)


def _of_tokens(subject: Audited) -> BlindGuess:
    """The most frequent token of each place; the errors are the shares of wrong ones."""
    kind = "private" if subject.public is None else "public"
    wrong = (subject.data.inputs != subject.guess).double().mean(1)
    name = f"the most frequent {kind} token of each place"
    return BlindGuess(name, wrong)


def _rated(subject: Audited, name: str, guess: Tensor) -> BlindGuess:
    guessed = subject.data.to_pixels(guess).clamp(0, 1)
    truth = subject.data.to_pixels(subject.data.inputs)
    return BlindGuess(name, (guessed - truth).square().flatten(1).mean(1), guessed)


def nested_runs(
    runs: Sequence[RunResult], values: Callable[[RunResult], tuple[float, ...]]
) -> Tensor | list[list[Tensor]]:
    """Batches outside: all seeds share them. Of one batch, images, each the mean over seeds."""
    rows = {(run.batch, run.seed): torch.tensor(values(run)).double() for run in runs}
    batches = sorted({batch for batch, _ in rows})
    if len(batches) == 1:
        return torch.stack([*rows.values()]).mean(0)
    return [[row for (place, _), row in rows.items() if place == batch] for batch in batches]


def beats_guess(attack: AttackResult, guess: BlindGuess) -> AgainstGuess:
    """The attack's errors beside the guess's."""

    def gains(run: RunResult) -> tuple[float, ...]:
        errors = torch.tensor(run.mse_pixels)
        first = run.batch * len(errors)
        guessed = guess.errors[first : first + len(errors)].cpu()
        return tuple(gain_over_guess(errors, guessed).tolist())

    return against_guess(nested_runs(attack.runs, gains), numbered_stream(0))


def check_undefended(attacks: Sequence[AttackResult], guess: BlindGuess) -> Undefended | None:
    """The strongest of the attacks, and whether it can judge; `None` without any."""
    rated = [(attack, beats_guess(attack, guess)) for attack in attacks]
    if not rated:
        return None
    best, found = max(rated, key=lambda pair: (pair[1].works, pair[1].gain.mean))
    errors = guess.errors.double().clamp(min=1e-12)
    psnr = None if best.psnr is None else float((-10 * errors.log10()).mean())
    return Undefended(
        attack=best.attack,
        mse_pixels=best.mse_pixels,
        psnr=best.psnr,
        guess=guess.name,
        guess_mse_pixels=float(errors.mean()),
        guess_psnr=psnr,
        gain=found.gain,
        copies=found.copies,
        examples=found.examples,
        can_judge=found.works,
    )
