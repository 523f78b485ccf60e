"""From points to answers: which setting reaches the goals, typed, without a sentence."""

from ._curves import dominated, hidden, next_strengths
from ._goals import Goal, wishes_of
from ._solve import SHORTLIST, Setting, Solved, Wish, solve_wishes

__all__ = ["Goal"]
