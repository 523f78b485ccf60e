"""The options of the adaptive attack."""

from typing import Any

from gradveil._batches import check_pair
from gradveil._checks import (
    check_count,
    check_kind,
    check_methods,
    check_not_negative,
    check_optional_callable,
    check_positive,
)
from gradveil.theory import GaussianPrior

from ._inverting_gradients import InvertingGradients
from ._search import Finish


def check_adaptive(attack: Any) -> None:
    """Require options of `Adaptive` that make sense."""
    check_count(attack.restarts, "restarts")
    check_count(attack.probes, "probes")
    check_not_negative(attack.smoothing, "smoothing")
    for value in check_pair(attack.looseness, "looseness"):
        check_positive(value, "looseness")
    check_kind(attack.unaware, "unaware", InvertingGradients, "Use `InvertingGradients()`.")
    if attack.finish is not None:
        check_kind(attack.finish, "finish", Finish, "Use `Finish()`.")
    if attack.prior is not None and not isinstance(attack.prior, GaussianPrior):
        check_methods(attack.prior, "prior", ("gradient", "curvature"), "`TotalVariation()`")
    if attack.time_budget is not None:
        check_not_negative(attack.time_budget, "time_budget")
    check_optional_callable(attack.progress, "progress", "Give a function, or None.")
