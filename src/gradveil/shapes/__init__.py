"""Shapes: how noise is spread over a message, and the sources that they come from."""

from ._fit import Evidence, fit_shape, gather, shape_with
from ._model import ModelSource, model_given, synthetic, trust_in
from ._public import Public, rms_shape
from ._server import FromServer
from ._shape import Given, KeptSource, Needs, Request, Shape, Source, check_state

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
