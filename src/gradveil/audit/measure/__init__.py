"""From a subject in a federation to points: what each defense leaks, guarantees and costs."""

from ._bound_study import BoundPoint, BoundStudy, draw_sweep
from ._cells import PLAIN, Laboratory, Plan, by_spec
from ._details import CANDIDATES, Measurement, formal_privacy, measure_defense
from ._guess import BlindGuess, beats_guess, blind_guess, check_undefended
from ._matching import MATCHES, Budget, RequestedDefense, matched, requested_defenses, unique_names
from ._plans import plan_of, planned, unwrapped
from ._points import attacks_of
from ._search import WORK, Meter, Progress, Search
from ._strengths import Axis, axes_of, given_axes, usual_amounts
from ._training import make_pool

__all__ = ["BoundPoint", "BoundStudy"]
