"""Whether a loss is a sum of one term for each example."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad


def known_to_separate(loss_fn: Any) -> bool:
    """Whether the loss says so itself: a loss of PyTorch with reduction "mean" or "sum"."""
    if isinstance(loss_fn, torch.nn.Module):
        is_torch = type(loss_fn).__module__.startswith("torch.nn")
        return is_torch and getattr(loss_fn, "reduction", None) in ("mean", "sum")
    if isinstance(loss_fn, functools.partial):
        given = loss_fn.keywords.get("reduction", "mean")
        return known_to_separate(loss_fn.func) and given in ("mean", "sum")
    if getattr(loss_fn, "__module__", None) != "torch.nn.functional":
        return False
    default = inspect.signature(loss_fn).parameters.get("reduction")
    return default is not None and default.default in ("mean", "sum")


def separates_at(loss: Callable[[Tensor], Tensor], outputs: Tensor) -> bool:
    """Whether moving some examples' outputs leaves the other examples' gradients where they are.

    The property that matters is ∂²L/∂o_b∂o_c = 0 for b ≠ c. It is tested by moving every second
    example, and then the others.
    """
    if outputs.dim() == 0 or outputs.shape[0] == 1:
        return True
    moved = torch.zeros(outputs.shape[0], dtype=torch.bool, device=outputs.device)
    moved[::2] = True
    return all(_unmoved_stay(loss, outputs, chosen) for chosen in (moved, ~moved))


def _unmoved_stay(loss: Callable[[Tensor], Tensor], outputs: Tensor, moved: Tensor) -> bool:
    other = outputs.clone()
    shift = torch.linspace(0.3, 0.9, other[moved].numel(), dtype=other.dtype, device=other.device)
    other[moved] += shift.view_as(other[moved])
    before, after = grad(loss)(outputs), grad(loss)(other)
    return bool(torch.allclose(before[~moved], after[~moved], rtol=1e-4, atol=1e-7))
