"""The exact attacker: which of a set of candidates was in the batch."""

from ._candidate_bound import CandidateBound, CandidatePoint, candidate_bound
from ._identification import Identification
from ._identify import Identify
from ._lineups import Lineups, draw_lineups
from ._report import IdentificationReport, Trial
from ._trials import identify_trials

__all__ = [
    "CandidateBound",
    "CandidatePoint",
    "Identification",
    "IdentificationReport",
    "Identify",
    "Lineups",
    "Trial",
    "candidate_bound",
    "draw_lineups",
    "identify_trials",
]
