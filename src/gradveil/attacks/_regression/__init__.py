"""Inputs by regression on simulated messages."""

from ._regress import Regress

__all__ = ["Regress"]
