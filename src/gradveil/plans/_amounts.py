"""Moments in a given shape, with the amounts of the public examples."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from gradveil._tensors import total
from gradveil._typing import Tensors
from gradveil.sensitivity import Moments

from ._evidence import Evidence
from ._pooling import mean_of, pool
from ._shape import Shape

LEAST = 1e-6
"""The least E g_i² over the mean of its tensor: no entry is 0 only because public examples are."""


def shaped_moments(
    batches: Sequence[Evidence],
    shape: Shape,
    size: int,
    input_size: int,
    *,
    curvature: bool = False,
) -> Moments:
    """Moments from which every defense plans with this shape, for messages of `size` examples.

    E g_i² is that of the public batches. E‖∇g_i‖² is b r_i² E g_i² with one b for the message,
    such that noise of the variances r has the trace Σ s²/r and the cost Σ g² r of the public
    batches themselves. So `target_error` and `utility_budget` get the amount that these ask for.
    """
    slopes, squares = _for_size(batches, size, curvature=False)
    levels = shape.levels(squares)
    weights = _positive(_for_size(batches, size, curvature=True)[1] if curvature else squares)
    second = [b.moments.second_squares for b in batches]
    judge = None
    if all(known is not None for known in second):
        judge = _rescaled(mean_of([known or {} for known in second]), batches[0], size)
    known = batches[0].moments
    return Moments(
        squared_values=_positive(squares),
        squared_sensitivities=_slopes(slopes, levels, weights),
        input_size=input_size,
        second_squares=None if judge is None else _slopes(judge, levels, weights),
        squared_example_values=weights if curvature else None,
        hidden=max(b.moments.hidden for b in batches),
        estimator=known.estimator,
    )


def _for_size(
    batches: Sequence[Evidence], size: int, *, curvature: bool
) -> tuple[Tensors, Tensors]:
    """E s² and E g² (or h) of messages of `size` examples."""
    slopes, squares = pool(batches, size, equally=False, curvature=curvature)
    first = batches[0]
    if first.is_sum and not curvature:
        squares = {n: s * (size / first.examples) ** 2 for n, s in squares.items()}
    return _rescaled(slopes, first, size), squares


def _rescaled(slopes: Tensors, batch: Evidence, size: int) -> Tensors:
    """s² of a mean falls with the number of examples, of a sum it grows."""
    ratio = size / batch.examples
    return {n: s * (ratio if batch.is_sum else 1 / ratio) for n, s in slopes.items()}


def _slopes(slopes: Tensors, levels: Tensors, weights: Mapping[str, Tensor]) -> Tensors:
    """b r² w with Σ b r² w / r = Σ s² / r."""
    wanted = float(total(slope / levels[n] for n, slope in slopes.items()))
    spent = float(total(w * levels[n] for n, w in weights.items()))
    factor = wanted / spent if spent > 0 else 0.0
    return {n: factor * levels[n].square() * w for n, w in weights.items()}


def _positive(squares: Tensors) -> Tensors:
    """Not below `LEAST` of the tensor's mean, nor of the message's; 0 only where all is."""
    count = sum(square.numel() for square in squares.values())
    whole = float(total(squares.values())) / max(count, 1)
    return {n: s.clamp(min=LEAST * max(float(s.mean()), LEAST * whole)) for n, s in squares.items()}
