"""Statements with a proof: (ε, δ), recognition, secure noise, and tests that catch mistakes.

>>> from gradveil.privacy import PrivacyAccount
>>> account = PrivacyAccount(noise_multiplier=4.0, sample_rate=1.0, delta=1e-5)
>>> account.step(16)
>>> round(account.epsilon(), 3)
4.377
"""

from gradveil._secure import (
    SecureGenerator,
    clip_for_grid,
    discrete_normal,
    grid_step,
    release_on_grid,
)

from ._account import BudgetError, PrivacyAccount
from ._canary import epsilon_lower_bound
from ._checks import check_delta
from ._epsilon import delta_after, epsilon_after, solve_noise_multiplier
from ._gaussian import gaussian_delta, gaussian_epsilon, gaussian_tradeoff
from ._grid import epsilon_on_grid, grid_distance
from ._recognition import guess_probability, recognition_bound
from ._sampling import check_sample_rate, poisson_sample
from ._unbiased import fisher_bound, renyi_bound, renyi_two

__all__ = [
    "BudgetError",
    "PrivacyAccount",
    "SecureGenerator",
    "check_delta",
    "check_sample_rate",
    "clip_for_grid",
    "delta_after",
    "discrete_normal",
    "epsilon_after",
    "epsilon_lower_bound",
    "epsilon_on_grid",
    "fisher_bound",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_tradeoff",
    "grid_distance",
    "grid_step",
    "guess_probability",
    "poisson_sample",
    "recognition_bound",
    "release_on_grid",
    "renyi_bound",
    "renyi_two",
    "solve_noise_multiplier",
]
