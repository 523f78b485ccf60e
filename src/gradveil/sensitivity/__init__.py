"""How strongly each entry of a message reacts to the private data."""

from ._estimators import (
    Exact,
    PerExample,
    Sketch,
    chunk_size,
    directional_derivatives,
    draw_probes,
    unit_vectors,
)
from ._measure import (
    HiddenPathWarning,
    estimator_of,
    measure,
    measure_with_values,
    rounding_of,
    spread_of,
    values_at_others,
)
from ._moments import Estimator, Measurement, Moments, check_moments, estimator_name
from ._structured import Structured

# What `__all__` does not list is for our own packages.
__all__ = [
    "Estimator",
    "Exact",
    "HiddenPathWarning",
    "Measurement",
    "Moments",
    "PerExample",
    "Sketch",
    "Structured",
    "measure",
]
