"""The norm in which gradients are clipped: that of the noise they will get."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from gradveil._secure import bits_for_grid, clip_for_grid, grid_step
from gradveil._tensors import Tensors, total

Factors = tuple[Tensor, ...]

MARGIN = 64
"""Norms may be wrong by so many units in the last place: the clip is that much smaller."""

ARITHMETIC = 2.0**-12
"""The share of the clip that is kept for floating point where noise is drawn on a grid: for norms,
and for other examples' gradients, whose last bits may change with the number of examples."""


@dataclass(frozen=True)
class Weights:
    """1/r of a parameter of shape (n, ...) as a product; each part is `None` where it is 1."""

    rows: Tensor | None = None
    """Of shape (n, 1, ...)."""
    rest: Tensor | None = None
    """Of shape (1, ...)."""
    entries: Tensor | None = None
    """Of shape (n, ...)."""

    @property
    def whole(self) -> Tensor | None:
        """All of them in one tensor that broadcasts to the parameter."""
        given = [w for w in (self.rows, self.rest, self.entries) if w is not None]
        return prod(given[1:], start=given[0]) if given else None


class Metric:
    """‖g‖_Σ = ‖Σ^{-1/2} g‖ with Σ = diag(r) / mean(r).

    r are relative variances, tensor by tensor a product of factors that broadcast to it; `None`:
    Σ = I. The mean of Σ_ii over all entries is 1, so that a clip means about the same for every
    shape: noise of covariance c² Σ has the power of isotropic noise of standard deviation c.
    Entries with r = 0 are in no norm: nothing of them may be sent (`kept`).

    Args:
        factors: Of r, by parameter name.
        like: The parameters, or anything in their shapes.
        grid: z of noise that will be drawn on a grid; `None` for continuous noise.
        rounded: What is rounded to that grid: "each" vector that is clipped, or their "sum".
    """

    def __init__(
        self,
        factors: Mapping[str, Factors] | None,
        like: Mapping[str, Tensor],
        grid: float | None = None,
        rounded: str = "sum",
    ) -> None:
        self._like, self._factors = like, None
        self._grid, self._rounded = grid, rounded
        self.mean = 1.0
        """Of r over all entries."""
        if factors is not None:
            if factors.keys() != like.keys():
                raise ValueError(
                    f"Parameter `factors` should have the parameters {sorted(like)[:8]}. Found"
                    f" {sorted(factors)[:8]}. Plan the shape for this model."
                )
            self._factors = {n: [f.to(v) for f in factors[n]] for n, v in like.items()}
            entries = sum(value.numel() for value in like.values())
            self.mean = float(total(self._levels(n) for n in like)) / max(1, entries)

    def deviations(self, name: str) -> Tensor | None:
        """√Σ_ii of one tensor, in its shape; `None` where Σ = I."""
        if self._factors is None:
            return None
        return (self._levels(name) / self.mean).sqrt()

    def kept(self, values: Tensors) -> Tensors:
        """The values with 0 where r = 0."""
        if self._factors is None:
            return values
        masks = {n: [f > 0 for f in self._factors[n] if bool((f == 0).any())] for n in values}
        return {n: prod(masks[n], start=value) for n, value in values.items()}

    def weights(self, name: str) -> Weights:
        """1/r of one tensor; `scaled` puts the mean in."""
        if self._factors is None:
            return Weights()
        shape = self._like[name].shape
        shapes = {"rows": (*shape[:1], *[1] * len(shape[1:])), "entries": tuple(shape)}
        shapes["rest"] = (*[1] * len(shape[:1]), *shape[1:])
        found: dict[str, Tensor] = {}
        for factor in self._factors[name]:
            full = factor.reshape((1,) * (len(shape) - factor.dim()) + factor.shape)
            kind = "rows" if full.numel() == full.shape[:1].numel() else "entries"
            kind = "rest" if full.shape[:1].numel() == 1 else kind
            inverse = full.reciprocal().masked_fill(full == 0, 0.0)
            found[kind] = inverse if kind not in found else found[kind] * inverse
        return Weights(**{kind: w.expand(shapes[kind]) for kind, w in found.items()})

    def squares(self, name: str, gradients: Tensor) -> Tensor:
        """Σ_i g_bi² / r_i of one tensor for each example b, in float64."""
        whole = self.weights(name).whole
        unit, size = in_unit(gradients)
        squares = unit.square()
        if whole is not None:
            squares = squares.mul_(whole)
        return squares.reshape(len(gradients), -1).sum(1).double() * size.square()

    def factor(self, squares: Tensor, clip: float) -> Tensor:
        """min(1, C / ‖g_b‖_Σ), the clip C being smaller by what rounding can do (`limit`).

        A factor whose own rounding would be more than that, because it is too small for the
        parameters' type, is 0.
        """
        limit = self.limit(clip)
        norms = (self.mean * squares).clamp(min=limit**2).sqrt()
        factor = (limit / norms).clamp(max=1.0)
        least = max(torch.finfo(value.dtype).tiny for value in self._like.values())
        return factor.masked_fill(factor < least, 0.0)

    def clipped(self, values: Tensors, clip: float) -> Tensors:
        """The values, clipped as one."""
        squares = [self.squares(name, value.unsqueeze(0)) for name, value in values.items()]
        factor = self.factor(sum(squares[1:], start=squares[0]), clip)[0]
        return {n: v * factor.to(v.dtype) for n, v in self.kept(values).items()}

    def limit(self, clip: float) -> float:
        """The norm to clip to, so that sums move by C at most after all rounding.

        C less 64 units in the last place, by which norms may be wrong. For noise on a grid of steps
        s = z C / 2^bits (in the coordinates Σ^{-1/2} g) it is C (1 - 2⁻¹²) less what rounding to
        the grid may add (`clip_for_grid`).
        """
        limit = clip * (1 - MARGIN * self._eps)
        entries = sum(value.numel() for value in self._like.values())
        if self._grid is None or not entries:
            return limit
        step = grid_step(self._grid * clip, bits_for_grid(self._grid, entries))
        return clip_for_grid(limit - ARITHMETIC * clip, entries, step, rounded=self._rounded)

    @property
    def _eps(self) -> float:
        return max(torch.finfo(value.dtype).eps for value in self._like.values())

    def _levels(self, name: str) -> Tensor:
        assert self._factors is not None
        value = self._like[name]
        return prod(self._factors[name], start=value.new_ones(())).expand(value.shape)


def in_unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each row over its largest entry, and that entry in float64: squares then do not vanish."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))  # under autocast they are less
    flat = rows.detach().reshape(len(rows), -1)
    size = flat.abs().amax(1) if flat.shape[1] else flat.new_ones(len(flat))
    size = torch.where(size > 0, size, 1.0)
    return rows / size.view(-1, *[1] * (rows.dim() - 1)), size.double()


def zeros(parameters: Tensors, dtype: torch.dtype | None = None) -> Tensors:
    """What no example adds; in the parameters' dtype if `None`."""
    return {name: torch.zeros_like(p, dtype=dtype) for name, p in parameters.items()}
