"""The measurements of an audit over strengths, as cells of a store."""

from ._cells import hold
from ._plan import Plan, subject_fingerprint
from ._points import Results, attacks_of, point_of
from ._training import Training, make_pool

__all__ = [
    "Plan",
    "Results",
    "Training",
    "attacks_of",
    "hold",
    "make_pool",
    "point_of",
    "subject_fingerprint",
]
