"""Tests whether a loss is a sum over examples."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad


def loss_reduction(loss_fn: Any) -> str | None:
    """ "mean" or "sum" for a loss of PyTorch that says so, `None` for all others."""
    reduction: Any = None
    if isinstance(loss_fn, functools.partial):
        default = loss_reduction(loss_fn.func)
        reduction = loss_fn.keywords.get("reduction", default) if default else None
    elif isinstance(loss_fn, torch.nn.Module):
        is_torch = type(loss_fn).__module__.startswith("torch.nn")
        reduction = getattr(loss_fn, "reduction", None) if is_torch else None
    elif getattr(loss_fn, "__module__", None) == "torch.nn.functional":
        parameter = inspect.signature(loss_fn).parameters.get("reduction")
        reduction = parameter.default if parameter else None
    return reduction if reduction in ("mean", "sum") else None


def is_sum_over_examples(loss: Callable[[Tensor], Tensor], outputs: Tensor) -> bool:
    """Whether moving some examples' outputs leaves the other examples' gradients where they are.

    The property that matters is ∂²L/∂o_b∂o_c = 0 for b ≠ c. It is tested by moving the examples
    whose number has a given binary digit, and then the others: any two differ in some digit.
    """
    count = outputs.shape[0] if outputs.dim() > 0 else 1
    numbers = torch.arange(count, device=outputs.device)
    digits = [(numbers >> place) % 2 == 1 for place in range((count - 1).bit_length())]
    before = grad(loss)(outputs)
    return all(
        _unmoved_stay(loss, outputs, before, moved) for digit in digits for moved in (digit, ~digit)
    )


def _unmoved_stay(
    loss: Callable[[Tensor], Tensor], outputs: Tensor, before: Tensor, moved: Tensor
) -> bool:
    other = outputs.clone()
    shift = torch.linspace(0.3, 0.9, other[moved].numel(), dtype=other.dtype, device=other.device)
    other[moved] += shift.view_as(other[moved])
    after = grad(loss)(other)
    scale = float(torch.maximum(before.abs().max(), after.abs().max()))
    return bool(torch.allclose(before[~moved], after[~moved], rtol=1e-4, atol=1e-6 * scale))
