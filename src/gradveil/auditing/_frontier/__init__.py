"""Curves of leakage against loss, and the answers that they give, as parts of a result."""

from ._outcome import Answer, Curve, Frontier, Leak, Point

__all__ = ["Answer", "Curve", "Frontier", "Leak", "Point"]
