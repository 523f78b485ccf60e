"""How strongly each entry of a message reacts to the private data."""

from ._along_steps import AlongSteps
from ._auto import Auto
from ._estimator import Estimator, Measurement, chunk_size, draw_probes, estimator_name
from ._exact import Exact, unit_vectors
from ._hidden import HiddenPathWarning, rounding_of, spread_of, values_at_others
from ._measure import check_estimator, measure, measure_with_values
from ._moments import Moments, SquaresOf, check_moments
from ._per_example import PerExample
from ._sketch import Sketch, directional_derivatives
from ._structured import Structured

__all__ = [
    "AlongSteps",
    "Auto",
    "Estimator",
    "Exact",
    "HiddenPathWarning",
    "Measurement",
    "Moments",
    "PerExample",
    "Sketch",
    "Structured",
    "check_estimator",
    "check_moments",
    "chunk_size",
    "directional_derivatives",
    "draw_probes",
    "measure",
    "measure_with_values",
    "rounding_of",
    "spread_of",
    "unit_vectors",
    "values_at_others",
]
