"""Layers whose second derivatives cost less, for searches that differentiate messages by inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from gradveil.messages import is_transformed

FORWARD, INPUTS, WEIGHT = range(3)
"""Which part of ⟨ȳ, w * x⟩ is computed from the two others: y, x̄ or w̄."""


@dataclass(frozen=True)
class Geometry:
    """The options of a convolution and the shapes of its parts."""

    options: tuple[Any, ...]
    """Stride, padding and dilation; those of transposed ones, which are not used; groups."""
    inputs: torch.Size
    weight: torch.Size
    layers: "FastLayers"

    def compute(self, part: int, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        """y of (x, w) and a bias, x̄ of (ȳ, w), or w̄ of (ȳ, x)."""
        dtype = left.dtype
        if part == INPUTS and self._is_narrow(left):
            narrow, (stride, padding, *_) = torch.ops.aten._slow_conv2d_backward, self.options
            like, mask = left.new_empty(self.inputs), [True, False, False]
            found = narrow.output_mask(left, like, right, self.weight[2:], stride, padding, mask)
            return found[0]  # type: ignore[no-any-return]
        left, right = self.layers.rounded(left), self.layers.rounded(right)
        if part == FORWARD:
            bias = None if bias is None else self.layers.rounded(bias)
            return torch.convolution(left, right, bias, *self.options).to(dtype)
        inputs = right if part == WEIGHT else left.new_empty(self.inputs)
        weight = right if part == INPUTS else left.new_empty(self.weight)
        mask = [part == INPUTS, part == WEIGHT, False]
        backward = torch.ops.aten.convolution_backward
        found = backward(left, inputs, weight, None, *self.options, mask)
        return found[part - 1].to(dtype)  # type: ignore[no-any-return]

    def _is_narrow(self, outputs: Tensor) -> bool:
        """Whether torch's own kernel is faster than oneDNN's: with up to 4 input channels it is."""
        plain = self.options[-1] == 1 and set(self.options[2]) == {1} and len(self.weight) == 4
        return plain and self.weight[1] <= 4 and outputs.device.type == "cpu"


class Convolution(Function):
    """One part of the trilinear form ⟨ȳ, w * x⟩: its derivatives are the other parts.

    torch's own layers are told by its engine which derivatives a pass needs. A function in Python
    only hears whether a tensor requires any, so the engine is asked for what made the tensor.
    """

    @staticmethod
    def forward(
        ctx: Any, part: int, left: Tensor, right: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.part, ctx.geometry = part, geometry
        return geometry.compute(part, left, right, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        left, right = ctx.saved_tensors
        to_left, to_right = {
            FORWARD: ((INPUTS, slope, right), (WEIGHT, slope, left)),
            INPUTS: ((FORWARD, slope, right), (WEIGHT, left, slope)),
            WEIGHT: ((FORWARD, right, slope), (INPUTS, left, slope)),
        }[ctx.part]
        found = [
            Convolution.apply(*to_it, None, ctx.geometry) if _is_wanted(tensor) else None
            for tensor, to_it in ((left, to_left), (right, to_right))
        ]
        of_bias = slope.sum([0, *range(2, slope.dim())]) if ctx.needs_input_grad[3] else None
        return None, *found, of_bias, None


def _is_wanted(tensor: Tensor) -> bool:
    """Whether the pass at work needs the derivative of a tensor that is not a leaf."""
    node = tensor.grad_fn
    return node is not None and bool(torch._C._will_engine_execute_node(node))  # type: ignore[attr-defined]


def has_half() -> bool:
    """Whether this processor multiplies numbers in bfloat16 by itself; elsewhere it is no gain."""
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return known is not None and bool(known())


class FastLayers(TorchFunctionMode):
    """Convolutions and BatchNorm in eval mode that cost less in searches.

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
            torch.nn.functional.batch_norm: _batch_norm,
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
        sizes = [(s,) * count if isinstance(s, int) else s for s in (stride, padding, dilation)]
        options = (*sizes, False, [0] * count, groups)
        geometry = Geometry(options, input.shape, weight.shape, self)
        views = [t.view_as(t) if t.is_leaf and t.requires_grad else t for t in (input, weight)]
        found: Tensor = Convolution.apply(FORWARD, *views, bias, geometry)
        return found


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """w (x - μ) / σ + b as one product and sum, or `None` where torch is to compute it."""
    if training or running_mean is None or running_var is None or weight is None or bias is None:
        return None
    if is_transformed(input, weight, bias):
        return None
    scale = weight * (running_var + eps).rsqrt()
    shape = (1, -1, *[1] * (input.dim() - 2))
    shift = (bias - running_mean * scale).view(shape)
    return torch.addcmul(shift, input, scale.view(shape))
