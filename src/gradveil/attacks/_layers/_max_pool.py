"""Max-pools of small windows, whose largest entries are found faster with channels last."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

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
