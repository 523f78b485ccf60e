"""Whether an attack finds more than a blind guess does: only then can it judge a defense."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ._intervals import Interval, Nested, bootstrap_interval

MARGIN = 1.0
"""Decibels by which an attack's error is to be below a blind guess's in the mean (a fifth less),
the whole interval being above 0."""
COPY = 10.0
"""Decibels from which on an example counts as a near copy; a single one shows that it works."""

CANNOT_JUDGE = "these attacks cannot judge this model"


@dataclass(frozen=True)
class AgainstGuess:
    """How far the errors of an attack are below those of a blind guess, example by example.

    >>> from gradveil.scoring import Interval
    >>> AgainstGuess(Interval(3.0, 2.0, 4.0), copies=0, examples=4).gain.mean
    3.0
    """

    gain: Interval
    """Decibels, 10 log₁₀ of the guess's squared error over the attack's, in the mean."""
    copies: int
    """Examples with a gain of `COPY` and more."""
    examples: int

    @property
    def works(self) -> bool:
        """Whether the attack beats the guess by a clear margin: a single example by a copy only."""
        clear = self.gain.mean >= MARGIN and self.gain.low > 0
        return self.copies > 0 or (self.examples > 1 and clear)


def gain_over_guess(errors: Tensor, guesses: Tensor) -> Tensor:
    """10 log₁₀ (guess / error) of squared errors; both count as 1e-12 where they are less.

    >>> gain_over_guess(torch.tensor([0.25, 2.0]), torch.tensor([0.5, 1.0])).tolist()
    [3.0102..., -3.0102...]
    """
    guesses, errors = (torch.as_tensor(e).double().clamp(min=1e-12) for e in (guesses, errors))
    return 10 * (guesses / errors).log10()


def against_guess(gains: Nested, generator: torch.Generator | None = None) -> AgainstGuess:
    """The gains of images, batches and seeds (`gain_over_guess`) with their interval.

    >>> against_guess(torch.tensor([2.0, 3.0, 2.5])).works
    True
    >>> against_guess(torch.tensor([-2.0, 3.0, 2.5])).works
    False
    """
    flat = _flat(gains)
    gain = bootstrap_interval(gains, generator=generator)
    return AgainstGuess(gain, int((flat >= COPY).sum()), len(flat))


def _flat(values: Nested) -> Tensor:
    return values if isinstance(values, Tensor) else torch.cat([_flat(child) for child in values])
