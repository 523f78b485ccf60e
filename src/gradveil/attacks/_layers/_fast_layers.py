"""The mode in which layers have the cheaper second derivatives."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradveil.messages import is_transformed

from ._batch_norm import EvalBatchNorm
from ._convolution import Convolution, Geometry
from ._max_pool import SMALL, MaxPool
from ._wanted import nodes_of

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


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
            **dict.fromkeys(CONVOLUTIONS, self._convolution),
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
