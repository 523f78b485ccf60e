"""Shapes: how noise is spread over a message, and the sources that they come from."""

from ._fit import Evidence, fit_shape, gather, rms_shape, shape_with
from ._shape import Given, Needs, Request, Shape, Source, check_state
from ._sources import (
    FromServer,
    KeptSource,
    ModelSource,
    Public,
    model_given,
    synthetic,
    trust_in,
)

# What `__all__` does not list is for our own packages.
__all__ = [
    "FromServer",
    "Given",
    "ModelSource",
    "Public",
    "Shape",
    "Source",
    "fit_shape",
    "rms_shape",
]
