"""Scores of reconstructions, matching of images, and intervals of means."""

from ._intervals import (
    MARGIN,
    AgainstGuess,
    Interval,
    Nested,
    against_guess,
    bootstrap_interval,
    gain_over_guess,
    share_interval,
)
from ._scores import PieceScores, Scores, match, score, score_table, score_tokens

# What `__all__` does not list is for our own packages.
__all__ = [
    "Interval",
    "PieceScores",
    "Scores",
    "bootstrap_interval",
    "score",
    "score_table",
    "score_tokens",
]
