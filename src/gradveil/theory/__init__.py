"""What a mechanism costs in training and what it guarantees against reconstruction."""

from ._bound import Bound, mean_bound, reconstruction_bound
from ._bound_case import BoundCase
from ._bound_forms import trace_error
from ._decrease import expected_decrease
from ._evaluations import Evaluations
from ._fisher import FisherInformation, fisher_matrix, fisher_trace
from ._largest import largest_information
from ._optimum import gain_over_isotropic, share_of_optimum
from ._plan_leak import plan_information, plan_information_trace
from ._prior import Prior
from ._priors import GaussianPrior
from ._utility import Utility, utility

__all__ = [
    "Bound",
    "BoundCase",
    "Evaluations",
    "FisherInformation",
    "GaussianPrior",
    "Prior",
    "Utility",
    "expected_decrease",
    "fisher_matrix",
    "fisher_trace",
    "gain_over_isotropic",
    "largest_information",
    "mean_bound",
    "plan_information",
    "plan_information_trace",
    "reconstruction_bound",
    "share_of_optimum",
    "trace_error",
    "utility",
]
