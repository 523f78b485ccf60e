"""From a subject in a federation to points: what each defense leaks, guarantees and costs."""

from ._bound_study import BoundPoint, BoundStudy, draw_sweep
from ._cells import KINDS, PLAIN, Laboratory, Progress, Search
from ._details import CANDIDATES
from ._guess import blind_guess
from ._matching import MATCHES, Budget, matched
from ._plans import planned
from ._strengths import Axis, axes_of, parse_defense, unique_names
from ._training import make_pool

__all__ = ["BoundStudy"]
