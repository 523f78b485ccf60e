"""What the attacks reached on the undefended message, as a part of an audit's result."""

from dataclasses import dataclass
from typing import Any

from gradveil.scoring import Interval


@dataclass(frozen=True)
class Undefended:
    """The strongest attack on the undefended message, beside a blind guess."""

    attack: str
    """Its specification."""
    mse_pixels: Interval
    """In [0, 1] units, as all errors here."""
    psnr: Interval | None
    guess: str
    """What was guessed, as "the mean of 96 public examples"."""
    guess_mse_pixels: float
    guess_psnr: float | None
    gain: Interval
    """How many decibels the attack's error is below the guess's, image by image, in the mean."""
    copies: int
    """Examples that were rebuilt as near copies."""
    examples: int
    can_judge: bool
    """Whether that is a clear margin (`gradveil.scoring.MARGIN`): only then is a failed attack on a
    defended message a merit of the defense."""
    sentence: str
    """The same for a reader without the theory."""


def undefended_columns(found: Undefended | None) -> dict[str, Any]:
    """Its columns in results.csv."""
    return {
        "attacks_can_judge": found.can_judge if found else None,
        "guess_mse_pixels": found.guess_mse_pixels if found else None,
        "guess_psnr": found.guess_psnr if found else None,
        "undefended_gain": found.gain.mean if found else None,
    }
