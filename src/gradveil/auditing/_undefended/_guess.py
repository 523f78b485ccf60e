"""What one guesses of the private examples without any message."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gradveil.auditing._subject import Subject

FEWEST = 2
"""Public examples of a class from which on their mean is a guess."""


@dataclass(frozen=True)
class BlindGuess:
    """A guess of every private example."""

    name: str
    errors: Tensor
    """Squared, of each private example, in [0, 1] units."""
    unit: str = "a mean squared error, of values in [0, 1], of"
    """What errors are, in words."""


def blind_guess(subject: "Subject", labels_known: bool) -> BlindGuess:
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
    rated = [BlindGuess(name, _errors(subject, guess)) for name, guess in guesses]
    return min(rated, key=lambda guess: float(guess.errors.mean()))


def _class_means(subject: "Subject") -> Tensor | None:
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


def _without_public(subject: "Subject") -> BlindGuess:
    inputs = subject.data.inputs
    count = len(inputs)
    if count > 1:
        others = (inputs.sum(0) - inputs) / (count - 1)
        return BlindGuess("the mean of the other private examples", _errors(subject, others))
    pixels = subject.data.to_pixels(inputs).clamp(0, 1)
    return BlindGuess("mid-grey", (pixels - 0.5).square().flatten(1).mean(1))


def _of_tokens(subject: "Subject") -> BlindGuess:
    """The most frequent token of each place; the errors are the shares of wrong ones."""
    kind = "private" if subject.public is None else "public"
    wrong = (subject.data.inputs != subject.guess).double().mean(1)
    name = f"the most frequent {kind} token of each place"
    return BlindGuess(name, wrong, "a share of wrong tokens of")


def _errors(subject: "Subject", guess: Tensor) -> Tensor:
    guessed, truth = subject.data.to_pixels(guess).clamp(0, 1), subject.data.to_pixels
    return (guessed - truth(subject.data.inputs)).square().flatten(1).mean(1)
