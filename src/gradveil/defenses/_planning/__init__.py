"""Parts that defenses plan with: the base of noise defenses, shapes, selection."""

from ._adam_shape import TooMuch, adam_levels
from ._fixed import FixedDefense
from ._noise import NoiseDefense, allowed_trace, roots
from ._plan_option import check_plan_from, takes_plan
from ._selection import keep_lowest, keep_within
from ._sensitivity_shape import check_shape_options, least_square, pool, sensitivity_ratios
from ._typical import median_level, raise_to_least
from ._wrapper import Wrapper

__all__ = [
    "FixedDefense",
    "NoiseDefense",
    "TooMuch",
    "Wrapper",
    "adam_levels",
    "allowed_trace",
    "check_plan_from",
    "check_shape_options",
    "keep_lowest",
    "keep_within",
    "least_square",
    "median_level",
    "pool",
    "raise_to_least",
    "roots",
    "sensitivity_ratios",
    "takes_plan",
]
