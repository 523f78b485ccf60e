"""Plans that do not depend on the private batch: how noise is spread, and who may know it."""

from ._model import model_moments
from ._rms import rms_shape
from ._shape import Shape

__all__ = ["Shape", "model_moments", "rms_shape"]
