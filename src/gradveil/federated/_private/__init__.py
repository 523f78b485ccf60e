"""What the releases of private clients add up to, and how that reads."""

from ._accounting import account_of, private_defense, settled
from ._statement import SEEDED, budget_spent, privacy_statement

__all__ = [
    "SEEDED",
    "account_of",
    "budget_spent",
    "privacy_statement",
    "private_defense",
    "settled",
]
