"""From a subject in a federation to points: what each defense leaks, guarantees and costs."""

from ._bound_study import BoundPoint, BoundStudy, draw_sweep
from ._cells import KINDS, PLAIN, Laboratory, Plan, by_spec
from ._details import CANDIDATES, Measurement
from ._fingerprint import fingerprint
from ._guess import beats_guess, blind_guess, check_undefended
from ._matching import MATCHES, Budget, matched
from ._plans import planned
from ._search import Progress, Search
from ._strengths import Axis, axes_of, parse_defense, unique_names
from ._training import make_pool

__all__ = ["BoundStudy"]
