"""A convolution with constant weights whose double backward computes only what is asked for.

PyTorch's own double backward of a convolution also computes the terms for a weight that carries no
gradient here; these two functions, each the other's transpose, leave them out.
"""

from typing import Any

import torch
from torch import Tensor

Geometry = tuple[Any, ...]


class ConstantConv(torch.autograd.Function):
    """x ↦ x ∗ w + b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        """The convolution."""
        ctx.save_for_backward(weight)
        ctx.geometry, ctx.size = geometry, x.shape
        result: Tensor = torch.convolution(x, weight, bias, *geometry)  # type: ignore[call-overload]
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """Its transpose."""
        (weight,) = ctx.saved_tensors
        return _Transpose.apply(gradient, weight, ctx.size, ctx.geometry), None, None, None


class _Transpose(torch.autograd.Function):
    """y ↦ wᵀ ∗ y."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor, size: torch.Size, geometry: Geometry
    ) -> Tensor:
        """The convolution's gradient with respect to its input."""
        ctx.save_for_backward(weight)
        ctx.geometry = geometry
        x = y.new_empty(1).expand(size)
        result: Tensor = torch.ops.aten.convolution_backward(
            y, x, weight, None, *geometry, [True, False, False]
        )[0]
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """The transpose of the transpose."""
        (weight,) = ctx.saved_tensors
        return ConstantConv.apply(gradient, weight, None, ctx.geometry), None, None, None
