"""What one guesses of the private examples without any message, and who is better."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import numbered_stream
from gradveil.scoring import (
    AgainstGuess,
    Interval,
    against_guess,
    bootstrap_interval,
    gain_over_guess,
)

from .._result import AttackResult, RunResult
from .._subject import Audited, Batch


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

    Without public examples the mean of the other private ones; of a single one, mid-grey. Of tokens
    the most frequent one of each place, and the errors are the shares of wrong ones.
    """
    data, public = subject.data, subject.public
    if subject.tokens:
        kind = "private" if public is None else "public"
        usual = subject.known[0].mode(0).values
        wrong = (data.inputs != usual).double().mean(1)
        return BlindGuess(f"the most frequent {kind} token of each place", wrong)
    if public is not None:
        of = f"{len(public[0])} public examples"
        guesses = {f"the mean of {of}": data.to_pixels(public[0].mean(0).expand_as(data.inputs))}
        by_class = _class_means(subject, public) if labels_known else None
        if by_class is not None:
            guesses[f"the mean of its class among {of}"] = data.to_pixels(by_class)
    elif len(data) > 1:
        others = (data.inputs.sum(0) - data.inputs) / (len(data) - 1)
        guesses = {"the mean of the other private examples": data.to_pixels(others)}
    else:
        guesses = {"mid-grey": torch.full_like(data.inputs, 0.5)}
    truth = data.to_pixels(data.inputs)
    rated = [
        BlindGuess(name, (made - truth).square().flatten(1).mean(1), made)
        for name, made in ((name, guess.clamp(0, 1)) for name, guess in guesses.items())
    ]
    return min(rated, key=lambda guess: float(guess.errors.mean()))


def _class_means(subject: Audited, public: Batch) -> Tensor | None:
    """Of the class of each private example; `None` where a class has one public example or none."""
    (inputs, targets), own = public, subject.data.targets
    if subject.data.task != "classification":
        return None
    members = {int(label): inputs[targets == label] for label in own.unique()}
    if any(len(group) < 2 for group in members.values()):
        return None
    return torch.stack([members[int(label)].mean(0) for label in own])


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


def error_share(attack: AttackResult, guess: BlindGuess) -> Interval:
    """The squared error over the guess's, example by example, of the best mix of both.

    An example with no further error than the guess has 1, whether it is easy to guess or not.
    """
    guessed = guess.errors.double().clamp(min=1e-12).tolist()

    def shares(run: RunResult) -> tuple[float, ...]:
        errors = run.mixed or run.mse_pixels
        own = guessed[run.batch * len(errors) :]
        return tuple(e / g for e, g in zip(errors, own, strict=False))

    return bootstrap_interval(nested_runs(attack.runs, shares), generator=numbered_stream(0))
