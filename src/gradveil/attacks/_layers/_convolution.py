"""Convolutions whose second derivatives compute nothing that is not asked for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._wanted import Nodes, nodes_of, wanted

if TYPE_CHECKING:
    from ._fast_layers import FastLayers

NARROW = 4
"""Input channels up to which torch's own kernel is faster than oneDNN's for inputs' derivatives."""


@dataclass(frozen=True)
class Geometry:
    """The options of a convolution, and whether it may be computed in half precision."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    layers: "FastLayers"

    def forward(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The convolution."""
        own = (self.stride, self.padding, self.dilation, False, [0] * len(self.stride))
        inputs, weight = self.layers.rounded(inputs), self.layers.rounded(weight)
        bias = None if bias is None else self.layers.rounded(bias)
        return torch.convolution(inputs, weight, bias, *own, self.groups)

    def inputs_gradient(self, outputs: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Its transpose with respect to the inputs."""
        if self._is_narrow(weight):
            own = (weight.shape[2:], self.stride, self.padding, [True, False, False])
            slow = torch.ops.aten._slow_conv2d_backward.output_mask
            found: Tensor = slow(outputs, inputs, weight, *own)[0]
            return found
        outputs, inputs, weight = (self.layers.rounded(t) for t in (outputs, inputs, weight))
        return self.backward(outputs, inputs, weight, (True, False, False))[0]

    def backward(
        self, outputs: Tensor, inputs: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Derivatives with respect to inputs, weight and bias, as the mask says."""
        own = (self.stride, self.padding, self.dilation, False, [0] * len(self.stride))
        bias = [weight.shape[0]] if mask[2] else None
        all_of_them: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.convolution_backward(
            outputs, inputs, weight, bias, *own, self.groups, list(mask)
        )
        return all_of_them

    def _is_narrow(self, weight: Tensor) -> bool:
        plain = self.groups == 1 and set(self.dilation) == {1} and weight.dim() == 4
        return plain and weight.shape[1] <= NARROW and weight.device.type == "cpu"


class Convolution(Function):
    """y = w * x + b."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        nodes: Nodes,
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.geometry, ctx.nodes = geometry, nodes
        return geometry.forward(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> Any:
        inputs, weight = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        mask = tuple(wanted(ctx.nodes, is_last=geometry.layers.is_last))
        if not any(mask):
            return (None,) * 5
        if geometry.layers.is_last and mask == (True, False, False):
            gradient = geometry.inputs_gradient(outputs, inputs, weight).to(inputs.dtype)
            return gradient, None, None, None, None
        nodes = nodes_of(outputs, inputs, weight)
        found = _ConvolutionBackward.apply(outputs, inputs, weight, geometry, mask, nodes)
        return *found, None, None


class _ConvolutionBackward(Function):
    """The derivatives of a convolution, as functions of ȳ, x and w."""

    @staticmethod
    def forward(
        ctx: Any,
        outputs: Tensor,
        inputs: Tensor,
        weight: Tensor,
        geometry: Geometry,
        mask: tuple[bool, bool, bool],
        nodes: Nodes,
    ) -> Any:
        ctx.save_for_backward(outputs, inputs, weight)
        ctx.geometry, ctx.nodes = geometry, nodes
        ctx.set_materialize_grads(False)
        return geometry.backward(outputs, inputs, weight, mask)

    @staticmethod
    def backward(
        ctx: Any, to_inputs: Tensor | None, to_weight: Tensor | None, to_bias: Tensor | None
    ) -> Any:
        outputs, inputs, weight = ctx.saved_tensors
        again = _Again(ctx.geometry)
        mask = again.wanted(ctx.nodes)
        found: list[Tensor | None] = [None, None, None]
        if mask[0]:
            found[0] = again.outputs(inputs, weight, to_inputs, to_weight, to_bias)
        if mask[1] and to_weight is not None:
            found[1] = again.inputs_gradient(outputs, inputs, to_weight)
        if mask[2] and to_inputs is not None:
            found[2] = again.weight_gradient(outputs, to_inputs, weight)
        return *found, None, None, None


class _Again:
    """The same operations as parts of a second derivative, differentiable unless it is the last."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry, self.is_last = geometry, geometry.layers.is_last

    def wanted(self, nodes: Nodes) -> list[bool]:
        """Whether ȳ's, x's and w's derivatives are asked for."""
        first, *others = nodes
        return [*wanted([first], is_last=self.is_last), *wanted(others, is_last=self.is_last)]

    def outputs(
        self,
        inputs: Tensor,
        weight: Tensor,
        to_inputs: Tensor | None,
        to_weight: Tensor | None,
        to_bias: Tensor | None,
    ) -> Tensor | None:
        """w * ẋ + ẇ * x + ḃ, of those that are there."""
        total: Tensor | None = None
        if to_weight is not None:
            total = self._forward(inputs, to_weight)
        if to_inputs is not None:
            other = self._forward(to_inputs, weight)
            total = other if total is None else total + other
        if to_bias is not None:
            shape = (1, -1, *[1] * len(self.geometry.stride))
            if total is None:
                blank = Convolution.apply(inputs, weight, None, self.geometry, (False,) * 3)
                total = torch.zeros_like(blank)
            total = total.to(to_bias.dtype) + to_bias.view(shape)
        return None if total is None else total.to(inputs.dtype)

    def inputs_gradient(self, outputs: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Transposed with respect to the inputs."""
        if self.is_last:
            return self.geometry.inputs_gradient(outputs, inputs, weight).to(inputs.dtype)
        return self._backward(outputs, inputs, weight, (True, False, False))[0]

    def weight_gradient(self, outputs: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Transposed with respect to the weight."""
        return self._backward(outputs, inputs, weight, (False, True, False))[1]

    def _forward(self, inputs: Tensor, weight: Tensor) -> Tensor:
        if self.is_last:
            return self.geometry.forward(inputs, weight)
        nodes = nodes_of(inputs, weight, None)
        found: Tensor = Convolution.apply(inputs, weight, None, self.geometry, nodes)
        return found

    def _backward(
        self, outputs: Tensor, inputs: Tensor, weight: Tensor, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.is_last:
            return self.geometry.backward(outputs, inputs, weight, mask)
        nodes = nodes_of(outputs, inputs, weight)
        found: tuple[Tensor, Tensor, Tensor] = _ConvolutionBackward.apply(
            outputs, inputs, weight, self.geometry, mask, nodes
        )
        return found
