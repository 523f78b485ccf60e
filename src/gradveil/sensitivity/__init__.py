"""How strongly each entry of a message reacts to the private data."""

from ._along_steps import AlongSteps
from ._auto import Auto
from ._estimator import Estimator, Measurement
from ._exact import Exact
from ._measure import check_estimator, measure, measure_with_values
from ._moments import Moments, check_moments
from ._per_example import PerExample
from ._sketch import Sketch
from ._structured import Structured

__all__ = [
    "AlongSteps",
    "Auto",
    "Estimator",
    "Exact",
    "Measurement",
    "Moments",
    "PerExample",
    "Sketch",
    "Structured",
    "check_estimator",
    "check_moments",
    "measure",
    "measure_with_values",
]
