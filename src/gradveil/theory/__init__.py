"""What a mechanism costs in training and what it guarantees against reconstruction."""

from ._bound import Bound, mean_bound, reconstruction_bound, trace_error
from ._fisher import (
    BoundCase,
    Evaluations,
    FisherInformation,
    fisher_trace,
    largest_information,
    plan_information,
    plan_information_trace,
)
from ._prior import GaussianPrior, Prior
from ._utility import Utility, expected_decrease, gain_over_isotropic, share_of_optimum, utility

# What `__all__` does not list is for our own packages.
__all__ = [
    "Bound",
    "BoundCase",
    "GaussianPrior",
    "Prior",
    "expected_decrease",
    "fisher_trace",
    "gain_over_isotropic",
    "mean_bound",
    "plan_information",
    "reconstruction_bound",
    "share_of_optimum",
    "utility",
]
