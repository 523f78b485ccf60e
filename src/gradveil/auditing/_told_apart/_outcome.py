"""What the exact attacker reached, as a part of an audit's result."""

from dataclasses import dataclass

from gradveil.scoring import Interval


@dataclass(frozen=True)
class ToldApart:
    """How often the right one of N candidates was picked, given the rest of the batch."""

    candidates: int
    """N."""
    trials: int
    rate: Interval
    """The share of trials in which it was the most likely one; chance is 1/N."""
    bits: Interval
    """What a message tells in the mean: log₂ N minus the posterior's entropy."""
    rank: float
    """The mean place of the right one; (N + 1)/2 is chance."""
    error: float
    """The mean squared error per entry of the posterior's mean; of tokens the share wrong."""
    one_class: bool = True
    """Whether all candidates had the same label."""

    @property
    def chance(self) -> float:
        """1/N."""
        return 1 / self.candidates
