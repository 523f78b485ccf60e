"""Cells of lower bounds on any attacker's error, each with another idea of the data."""

from ._candidates import candidate_bound
from ._gaussian import bound
from ._learned import learned_bound

__all__ = ["bound", "candidate_bound", "learned_bound"]
