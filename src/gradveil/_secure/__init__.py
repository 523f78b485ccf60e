"""Random numbers that nobody can compute again: noise from a cryptographic generator."""

from ._discrete import COARSEST, FINEST, discrete_normal
from ._entropy import fill_from_system
from ._generator import SecureGenerator
from ._grid import GRID_BITS, bits_for_grid, clip_for_grid, grid_step, release_on_grid

__all__ = [
    "COARSEST",
    "FINEST",
    "GRID_BITS",
    "SecureGenerator",
    "bits_for_grid",
    "clip_for_grid",
    "discrete_normal",
    "fill_from_system",
    "grid_step",
    "release_on_grid",
]
