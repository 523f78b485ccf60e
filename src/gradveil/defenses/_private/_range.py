"""Checks of how far apart the levels of a shape for private noise are."""

from torch import Tensor

from gradveil.plans import Shape

LARGEST_FACTOR = 1e8
"""Beyond it, squares of gradients that have to be clipped may vanish in float32."""


def check_range(shape: Shape) -> None:
    """Require factors whose squares and quotients float32 can hold."""
    for name, factors in shape.factors.items():
        for factor in (f for f in (f[f > 0] for f in factors) if f.numel()):
            low, high = float(factor.min()), float(factor.max())
            if low < 1 / LARGEST_FACTOR or high > LARGEST_FACTOR:
                raise ValueError(
                    "The factors of a shape for private noise should be in"
                    f" [{1 / LARGEST_FACTOR:g}, {LARGEST_FACTOR:g}]: beyond, norms are lost in"
                    " floating point, and examples are not clipped. Found"
                    f" {low:g} to {high:g} for `{name}`. Rescale the shape;"
                    " only the proportions of its levels count."
                )


def above_0(deviations: Tensor | None, kept: Tensor, name: str) -> Tensor:
    """Require noise on all that is sent: levels of too wide a range vanish in floating point."""
    assert deviations is not None
    if not bool(((deviations > 0) | (kept == 0)).all() & deviations.isfinite().all()):
        raise ValueError(
            f"The levels of a shape should be above 0 beside their mean. Found some of `{name}`"
            " that vanish in floating point. Limit the shape's range."
        )
    return deviations
