"""Whether an attacker who knows all but one example tells candidates for that one apart."""

from ._measure import CANDIDATES, candidate_choice, lineups_of, told_apart
from ._outcome import ToldApart

__all__ = ["CANDIDATES", "ToldApart", "candidate_choice", "lineups_of", "told_apart"]
