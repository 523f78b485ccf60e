"""How strongly each entry of a message reacts to the private data."""

from ._estimator import Estimator, Measurement
from ._exact import Exact
from ._measure import choose_estimator, measure, measure_with_values
from ._moments import Moments
from ._per_example import PerExample
from ._sketch import Sketch

__all__ = [
    "Estimator",
    "Exact",
    "Measurement",
    "Moments",
    "PerExample",
    "Sketch",
    "choose_estimator",
    "measure",
    "measure_with_values",
]
