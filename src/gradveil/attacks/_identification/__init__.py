"""The exact attacker: which of a set of candidates was in the batch."""

from ._identification import Identification
from ._identify import Identify
from ._report import IdentificationReport, Trial
from ._trials import identify_trials

__all__ = ["Identification", "IdentificationReport", "Identify", "Trial", "identify_trials"]
