"""From points to answers: which setting reaches the goals, typed, without a sentence."""

from .._settings import Goal, Wish, wishes_of
from ._solve import SHORTLIST, Setting, Solved, hidden, next_strengths, solve_wishes

__all__ = ["Goal"]
