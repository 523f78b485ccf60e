"""Exact inversion: the factors of a layer's gradient, the search for its zeros, and the batch."""

from ._exact_inversion import ExactInversion

__all__ = ["ExactInversion"]
