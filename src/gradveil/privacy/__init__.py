"""Statements with a proof: (ε, δ), recognition, and secure noise."""

from gradveil._secure import SecureGenerator

from ._account import BudgetError, PrivacyAccount
from ._releases import (
    check_delta,
    check_sample_rate,
    epsilon_after,
    epsilon_on_grid,
    poisson_sample,
    recognition_bound,
    renyi_bound,
    solve_noise_multiplier,
)

# What `__all__` does not list is for our own packages.
__all__ = [
    "BudgetError",
    "PrivacyAccount",
    "SecureGenerator",
    "epsilon_after",
    "poisson_sample",
    "recognition_bound",
    "renyi_bound",
    "solve_noise_multiplier",
]
