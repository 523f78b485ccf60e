"""How micro-batches are weighted in the loss of all of them."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from gradveil.messages import GradientMessage

_IGNORED = -100
"""The target that PyTorch's losses leave out by default."""


def check_countable(message: GradientMessage, reduction: str | None) -> None:
    """Require a loss in which every example of the batch counts the same.

    A mean with class weights or with ignored targets is divided by something else than the number
    of examples, which a micro-batch alone does not know.
    """
    if reduction == "sum":
        return
    loss_fn = message.loss.loss_fn
    if _is_cross_entropy(loss_fn) and _option(loss_fn, "weight") is not None:
        raise ValueError(
            "Parameter `loss_fn` should count every example the same, to be accumulated. Found a"
            " mean with class weights. Use reduction='sum' and divide the learning rate."
        )
    targets, ignored = message.targets, _option(loss_fn, "ignore_index")
    if _is_cross_entropy(loss_fn) and isinstance(targets, Tensor):
        index = _IGNORED if ignored is None else ignored
        if not targets.is_floating_point() and bool((targets == index).any()):
            raise ValueError(
                "Parameter `targets` should have no ignored entries, to be accumulated. Found"
                f" {int((targets == index).sum())} times {index}, so that the mean is not one over"
                " examples. Leave those examples out, or use reduction='sum'."
            )


def reduction_at(message: GradientMessage, inputs: Tensor, stated: str | None) -> str:
    """ "mean" or "sum", by what the loss makes of the first example and of the others.

    L = (L_1 + (n - 1) L_rest) / n for a mean, L = L_1 + L_rest for a sum.
    """
    losses = _split_losses(message, inputs)
    fitting = ["mean", "sum"] if losses is None else _fitting(*losses, len(inputs))
    if stated is None and len(fitting) == 2:
        raise ValueError(
            "Parameter `reduction` should be 'mean' or 'sum' for a loss that does not say which it"
            " is. Found None, and a micro-batch that does not tell. Pass it to `accumulate`."
        )
    if losses is not None and (not fitting or stated not in (None, *fitting)):
        whole, first, rest = losses
        raise ValueError(
            f"Parameter `loss_fn` should be a {stated or 'mean or a sum'} over examples, to be"
            f" accumulated. Found {whole:.6g} for {len(inputs)} examples, {first:.6g} for the first"
            f" alone and {rest:.6g} for the others. Use another loss, or one batch."
        )
    return stated or fitting[0]


def _fitting(whole: float, first: float, rest: float, count: int) -> list[str]:
    expected = {"mean": (first + (count - 1) * rest) / count, "sum": first + rest}
    scale = max(abs(whole), abs(first), abs(rest))
    return [name for name, value in expected.items() if abs(value - whole) <= 1e-3 * scale]


def _split_losses(message: GradientMessage, inputs: Tensor) -> tuple[float, float, float] | None:
    """The loss of all examples, of the first and of the others; `None` where it cannot be cut."""
    targets, loss = message.targets, message.loss
    if len(inputs) < 2 or not isinstance(targets, Tensor) or len(targets) != len(inputs):
        return None
    with torch.no_grad():
        outputs = loss.outputs(message.parameters, inputs)
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            return None
        cuts = (slice(None), slice(0, 1), slice(1, None))
        try:
            losses = [float(loss.loss_of_outputs(outputs[cut], targets[cut])) for cut in cuts]
        except (RuntimeError, ValueError, IndexError):  # not made for a single example
            return None
    return (losses[0], losses[1], losses[2]) if all(map(math.isfinite, losses)) else None


def _is_cross_entropy(loss_fn: Any) -> bool:
    inner = loss_fn.func if isinstance(loss_fn, functools.partial) else loss_fn
    if isinstance(inner, torch.nn.Module):
        return isinstance(inner, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
    return inner in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)


def _option(loss_fn: Any, name: str) -> Any:
    if isinstance(loss_fn, functools.partial):
        return loss_fn.keywords.get(name)
    return getattr(loss_fn, name, None)
