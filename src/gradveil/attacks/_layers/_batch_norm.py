"""BatchNorm in eval mode: y = w (x - μ) / √(σ² + ε) + b, whose second derivatives are products."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._wanted import Nodes, nodes_of, wanted

if TYPE_CHECKING:
    from ._fast_layers import FastLayers


class EvalBatchNorm(Function):
    """With running statistics, which are constants."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        epsilon: float,
        layers: "FastLayers",
        nodes: Nodes,
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.statistics = mean, variance, (variance + epsilon).rsqrt()
        ctx.epsilon, ctx.layers, ctx.nodes = epsilon, layers, nodes
        return torch.native_batch_norm(inputs, weight, bias, mean, variance, False, 0.0, epsilon)[0]

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        mask = wanted(ctx.nodes, is_last=ctx.layers.is_last)
        if mask == [True, False, False]:
            factor = weight * ctx.statistics[2]
            return outputs * _along(factor, outputs), *[None] * 7
        nodes = nodes_of(outputs, inputs, weight)
        found = _EvalBatchNormBackward.apply(
            outputs, inputs, weight, ctx.statistics, ctx.epsilon, ctx.layers, nodes
        )
        return *found, *[None] * 5


class _EvalBatchNormBackward(Function):
    """x̄ = w ȳ / σ, w̄ = Σ ȳ (x - μ) / σ, b̄ = Σ ȳ."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        inputs: Tensor,
        weight: Tensor,
        statistics: tuple[Tensor, Tensor, Tensor],
        epsilon: float,
        layers: "FastLayers",
        nodes: Nodes,
    ) -> Any:
        ctx.save_for_backward(outputs, inputs, weight)
        ctx.statistics, ctx.layers, ctx.nodes = statistics, layers, nodes
        ctx.set_materialize_grads(False)
        mean, variance, inverse = statistics
        return torch.ops.aten.native_batch_norm_backward(
            outputs, inputs, weight, mean, variance, mean, inverse, False, epsilon, [True] * 3
        )

    @staticmethod
    def backward(
        ctx: Any, to_inputs: Tensor | None, to_weight: Tensor | None, to_bias: Tensor | None
    ) -> Any:
        outputs, inputs, weight = ctx.saved_tensors
        mean, _, inverse = ctx.statistics
        own, *others = ctx.nodes
        last = ctx.layers.is_last
        mask = [*wanted([own], is_last=last), *wanted(others, is_last=last)]
        found: list[Tensor | None] = [None, None, None]
        slope = None if to_weight is None else to_weight * inverse
        if mask[0]:
            shift = torch.zeros_like(mean) if to_bias is None else to_bias
            total = _along(shift, inputs).expand_as(inputs)
            if slope is not None:
                start = _along(shift - mean * slope, inputs)
                total = torch.addcmul(start, inputs, _along(slope, inputs))
            if to_inputs is not None:
                total = torch.addcmul(total, to_inputs, _along(weight * inverse, inputs))
            found[0] = total
        if mask[1] and slope is not None:
            found[1] = outputs * _along(slope, outputs)
        if mask[2] and to_inputs is not None:
            every = [n for n in range(inputs.dim()) if n != 1]
            found[2] = (to_inputs * outputs).sum(every) * inverse
        return *found, None, None, None, None


def _along(channels: Tensor, like: Tensor) -> Tensor:
    """One number for each channel, ready to broadcast."""
    return channels.view(1, -1, *[1] * (like.dim() - 2))
