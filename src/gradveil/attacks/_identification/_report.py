"""What the exact attacker reaches over many trials."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

import torch

from gradveil._random import named_stream
from gradveil.scoring import Interval, bootstrap_interval, share_interval


@dataclass(frozen=True)
class Trial:
    """One message and what the attacker made of it.

    >>> Trial(draw=0, rank=1.0, is_first=True, bits=2.0, error=0.1, prior_error=0.5).is_first
    True
    """

    draw: int
    """Trials of one draw share their candidates and the rest of the batch."""
    rank: float | None
    """Of the truth; `None` where it was not among the candidates."""
    is_first: bool | None
    """Whether the most likely candidate was the truth."""
    bits: float
    """log₂ N minus the entropy of the posterior."""
    error: float
    """The mean squared error per entry of the posterior's mean, in the units of the inputs."""
    prior_error: float
    """The same for the mean of the candidates: the guess without a message."""


@dataclass(frozen=True)
class IdentificationReport:
    """Rates and means with 95 % intervals.

    >>> trials = [Trial(n, 1.0, n > 0, bits=2.0, error=0.1, prior_error=0.5) for n in range(4)]
    >>> IdentificationReport(candidates=8, trials=tuple(trials)).rate.mean
    0.75
    """

    candidates: int
    trials: tuple[Trial, ...]

    @property
    def chance(self) -> float:
        """The rate of a guess without a message, 1/N."""
        return 1 / self.candidates

    @property
    def rate(self) -> Interval | None:
        """How often the most likely candidate is the truth, with its Clopper-Pearson interval.

        Where trials share a draw they are not independent: the interval then also holds that of
        the draws' rates. With few draws (say three) it may still be too narrow. `None` where the
        truth was not among the candidates.
        """
        firsts = [trial.is_first for trial in self.trials if trial.is_first is not None]
        if not firsts:
            return None
        found = share_interval(sum(firsts), len(firsts))
        if len({trial.draw for trial in self.trials}) == len(self.trials):
            return found
        drawn = self._interval([float(first) for first in firsts])
        low, high = min(found.low, drawn.low), max(found.high, drawn.high)
        return replace(found, low=max(0.0, low), high=min(1.0, high))

    @property
    def rank(self) -> Interval | None:
        """The mean place of the truth; (N + 1)/2 is chance."""
        ranks = [trial.rank for trial in self.trials]
        if any(rank is None for rank in ranks):
            return None
        return self._interval([rank for rank in ranks if rank is not None])

    @property
    def bits(self) -> Interval:
        """What a message tells in the mean: log₂ N minus the mean entropy of the posterior."""
        found, most = self._interval([trial.bits for trial in self.trials]), log2(self.candidates)
        return replace(found, low=max(0.0, found.low), high=min(most, found.high))

    @property
    def error(self) -> Interval:
        """The mean squared error per entry of the posterior's mean.

        Where nearly all are told apart it is a mean of few large terms: the interval's upper end is
        then too low, more often than in one of 40 cases; its lower end is what bounds rest on.
        """
        return self._interval([trial.error for trial in self.trials])

    @property
    def prior_error(self) -> Interval:
        """The same without a message."""
        return self._interval([trial.prior_error for trial in self.trials])

    def _interval(self, numbers: Sequence[float]) -> Interval:
        """Draws outside, trials inside: those of one draw are not independent."""
        draws: dict[int, list[float]] = {}
        for trial, number in zip(self.trials, numbers, strict=True):
            draws.setdefault(trial.draw, []).append(number)
        groups = [torch.tensor(group, dtype=torch.float64) for group in draws.values()]
        if all(len(group) == 1 for group in groups):
            return bootstrap_interval(torch.cat(groups), generator=named_stream("identification"))
        return bootstrap_interval(groups, generator=named_stream("identification"))
