"""Layers whose second derivatives cost less, for searches that differentiate messages by inputs."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from gradveil.messages import is_transformed

Nodes: TypeAlias = tuple[Node | bool, ...]


def nodes_of(*tensors: Tensor | None) -> Nodes:
    """What made these tensors; of a leaf, and where there is none, whether it has derivatives."""
    return tuple(
        False if t is None or not t.requires_grad else True if t.grad_fn is None else t.grad_fn
        for t in tensors
    )


def wanted(nodes: Sequence[Node | bool], *, is_last: bool) -> list[bool]:
    """Whether the pass at work needs the derivatives of inputs and weights; inputs come first.

    torch's own layers are told so by its engine. A function in Python only hears whether a tensor
    requires derivatives at all: then the weights' would be computed again in the last pass, where
    only the candidate's are asked for. Leaves behind the first place are weights.
    """
    return [
        node and not (is_last and place > 0) if isinstance(node, bool) else _is_executed(node)
        for place, node in enumerate(nodes)
    ]


def _is_executed(node: Node) -> bool:
    return bool(torch._C._will_engine_execute_node(node))  # type: ignore[attr-defined]


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


SMALL = 4
"""Entries of a window up to which it pays to move the channels to the end and back."""

Window = tuple[Any, Any, Any, Any, bool]
"""Size, stride, padding, dilation, and whether sizes are rounded up."""


class MaxPool(Function):
    """The largest entry of each window, the first of equal ones, as torch's own."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, window: Window) -> Tensor:
        last = inputs.contiguous(memory_format=torch.channels_last)
        values, places = torch.ops.aten.max_pool2d_with_indices(last, *window)
        places = places.contiguous()
        ctx.save_for_backward(inputs, places)
        ctx.window = window
        return values.contiguous()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, outputs: Tensor) -> Any:
        inputs, places = ctx.saved_tensors
        return _MaxPoolBackward.apply(outputs, inputs.detach(), places, ctx.window), None


class _MaxPoolBackward(Function):
    """Puts the outputs' derivatives where the largest entries were: linear in them."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, inputs: Tensor, places: Tensor, window: Window) -> Any:
        ctx.save_for_backward(places)
        return torch.ops.aten.max_pool2d_with_indices_backward(outputs, inputs, *window, places)

    @staticmethod
    def backward(ctx: Any, to_inputs: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        found = to_inputs.flatten(2).gather(2, places.flatten(2)).view(places.shape)
        return found, None, None, None


def has_half() -> bool:
    """Whether this processor multiplies numbers in bfloat16 by itself; elsewhere it is no gain."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return known is not None and bool(known())


class FastLayers(TorchFunctionMode):
    """Convolutions, BatchNorm in eval mode and small max-pools that cost less in searches.

    For a cost D(g(x)) of a message g = ∇_Θ L torch computes the derivative of every backward pass
    of a convolution with respect to the weights, too, which is never asked for, and those of
    BatchNorm in many small products. Inside of this mode the layers compute what is asked for, the
    same numbers up to rounding. They can be differentiated any number of times.

    In the last pass (`last`) everything is linear in ∇_g D: there convolutions are computed in
    bfloat16 if `half`, where the processor has instructions for it. The message and the cost keep
    their precision, the derivative has a relative error of about 0.005.

    >>> x = torch.ones(1, 1, 3, 3, requires_grad=True)
    >>> w = torch.ones(1, 1, 2, 2, requires_grad=True)
    >>> with FastLayers() as layers:
    ...     loss = torch.conv2d(x, w).square().sum()
    ...     cost = torch.autograd.grad(loss, w, create_graph=True)[0].sum()
    >>> with layers.last():
    ...     torch.autograd.grad(cost, x)[0][0, 0, 1].tolist()
    [32.0, 64.0, 32.0]
    """

    def __init__(self, half: bool = False) -> None:
        super().__init__()
        self.half, self.is_last = half, False
        self._own: dict[Any, Callable[..., Tensor | None]] = {
            torch.nn.functional.batch_norm: self._batch_norm,
            torch.nn.functional.max_pool2d: _max_pool,
            **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), self._convolution),
        }

    @contextmanager
    def last(self) -> Iterator[None]:
        """In here the result of a backward pass is not differentiated again."""
        self.is_last = True
        try:
            yield
        finally:
            self.is_last = False

    def rounded(self, values: Tensor) -> Tensor:
        """In the precision that convolutions are computed in at this moment."""
        half = self.half and self.is_last and values.dtype == torch.float32
        return values.bfloat16() if half and values.device.type == "cpu" else values

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What is called in place of a function of torch."""
        kwargs = kwargs or {}
        own = self._own.get(func)
        fast = None if own is None else own(*args, **kwargs)
        return func(*args, **kwargs) if fast is None else fast

    def _convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        """The convolution, or `None` where torch is to compute it."""
        if isinstance(padding, str) or input.dim() != weight.dim() or is_transformed(input, weight):
            return None
        count = weight.dim() - 2
        sizes = [_each(size, count) for size in (stride, padding, dilation)]
        geometry = Geometry(sizes[0], sizes[1], sizes[2], groups, self)
        nodes = nodes_of(input, weight, bias)
        found: Tensor = Convolution.apply(input, weight, bias, geometry, nodes)
        return found

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor | None:
        """The normalised inputs, or `None` where torch is to compute them."""
        if (
            training
            or running_mean is None
            or running_var is None
            or weight is None
            or bias is None
        ):
            return None
        if is_transformed(input, weight, bias):
            return None
        nodes = nodes_of(input, weight, bias)
        found: Tensor = EvalBatchNorm.apply(
            input, weight, bias, running_mean, running_var, eps, self, nodes
        )
        return found


def _max_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """The pooled inputs, or `None` where torch is to compute them."""
    size = _each(kernel_size, 2)
    pays = input.device.type == "cpu" and math.prod(size) <= SMALL
    if input.dim() != 4 or return_indices or not pays or is_transformed(input):
        return None
    strides = size if stride is None or stride == [] else _each(stride, 2)
    window = (size, strides, _each(padding, 2), _each(dilation, 2), ceil_mode)
    found: Tensor = MaxPool.apply(input, window)
    return found


def _each(size: Any, count: int) -> tuple[int, ...]:
    """One number for each dimension."""
    return (size,) * count if isinstance(size, int) else tuple(size)
