"""Plans that do not depend on the private batch: how noise is spread, and who may know it."""

from ._evidence import Evidence, gather
from ._fit import fit_shape, shape_with
from ._kind import trust_in
from ._model import model_moments, released_moments
from ._public import public_moments
from ._rms import rms_shape
from ._shape import Shape
from ._synthetic import synthetic

__all__ = [
    "Evidence",
    "Shape",
    "fit_shape",
    "gather",
    "model_moments",
    "public_moments",
    "released_moments",
    "rms_shape",
    "shape_with",
    "synthetic",
    "trust_in",
]
