"""How strongly each entry of a message reacts to the private data."""

from ._along_steps import AlongSteps
from ._auto import Auto
from ._estimator import Estimator, Measurement, draw_probes
from ._exact import Exact
from ._measure import measure, measure_with_values
from ._moments import Moments
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
    "draw_probes",
    "measure",
    "measure_with_values",
]
