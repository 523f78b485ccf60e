"""Whether the attacks work at all: the undefended message beside a blind guess."""

from ._check import beats_guess, check_undefended
from ._guess import BlindGuess, blind_guess
from ._outcome import Undefended, undefended_columns

__all__ = [
    "BlindGuess",
    "Undefended",
    "beats_guess",
    "blind_guess",
    "check_undefended",
    "undefended_columns",
]
