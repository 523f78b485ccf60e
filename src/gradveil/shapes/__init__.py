"""Shapes: how noise is spread over a message, and the sources that they come from."""

from ._evidence import Evidence, gather  # for our own packages, as all that is not in `__all__`
from ._fit import fit_shape, shape_with
from ._model import ModelSource, model_given
from ._public import Public
from ._rms import rms_shape
from ._server import FromServer
from ._shape import Shape
from ._source import Given, KeptSource, Needs, Source, check_state
from ._synthetic import synthetic
from ._trust import trust_in

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
