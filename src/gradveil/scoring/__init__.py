"""Scores of reconstructions, matching of images, and intervals of means.

>>> import torch
>>> from gradveil.scoring import score
>>> image = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8)
>>> round(float(score(image + 0.1, image, ssim=False).mse), 4)
0.01
"""

from ._against_guess import (
    CANNOT_JUDGE,
    MARGIN,
    AgainstGuess,
    against_guess,
    gain_over_guess,
)
from ._intervals import Interval, Nested, bootstrap_interval, paired_interval
from ._match import match
from ._quality import PSNR_LIMIT, psnr, structural_similarity
from ._scores import Distance, Guess, Scores, score
from ._shares import share_interval
from ._tables import TableScores, score_table
from ._tokens import TokenScores, score_tokens

__all__ = [
    "CANNOT_JUDGE",
    "MARGIN",
    "PSNR_LIMIT",
    "AgainstGuess",
    "Distance",
    "Guess",
    "Interval",
    "Nested",
    "Scores",
    "TableScores",
    "TokenScores",
    "against_guess",
    "bootstrap_interval",
    "gain_over_guess",
    "match",
    "paired_interval",
    "psnr",
    "score",
    "score_table",
    "score_tokens",
    "share_interval",
    "structural_similarity",
]
