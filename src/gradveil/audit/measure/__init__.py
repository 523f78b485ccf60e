"""From a subject in a federation to points: what each defense leaks, guarantees and costs."""

from ._attacks import pictures
from ._bounds import BoundPoint, BoundStudy, draw_sweep
from ._cells import NO_DEFENSE, Progress, Search
from ._laboratory import Laboratory, blind_guess
from ._strengths import Axis, axes_of, parse_defense, unique_names
from ._training import make_pool

__all__ = ["BoundStudy"]
