"""The estimator `Structured`: layers it knows, their tangents, and s² from products of both."""

from ._estimate import Structured
from ._layout import layout_of

__all__ = ["Structured", "layout_of"]
