"""Whether an attacker who knows all but one example tells candidates for that one apart."""

from ._measure import candidate_choice, told_apart
from ._outcome import ToldApart

__all__ = ["ToldApart", "candidate_choice", "told_apart"]
