"""The loss of each example by itself."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from gradveil._checks import NonFiniteError, all_finite, first_line
from gradveil._memory import is_out_of_memory

from .._functional import FunctionalLoss

CLOSE = 1e-3
"""How far the loss of a batch may be from the mean or the sum over its examples."""


def example_losses(loss: FunctionalLoss, outputs: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
    """∇_outputs L_b and L_b, where L_b is the loss of example b alone.

    No other example enters, whatever the loss is: not through the number of examples, and not
    through their weights.
    """
    rows = (outputs,) if targets is None else (outputs, targets)

    def alone(*row: Tensor) -> Tensor:
        label = row[1].unsqueeze(0) if len(row) > 1 else None
        return loss.loss_of_outputs(row[0].unsqueeze(0), label)

    found: tuple[Tensor, Tensor]
    try:
        found = vmap(grad_and_value(alone))(*rows)
    except Exception as error:  # it does not batch, or is not made for a single example
        if is_out_of_memory(error):
            raise
        found = _one_by_one(alone, rows)
    return found


def _one_by_one(alone: Callable[..., Tensor], rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    try:
        each = [grad_and_value(alone)(*row) for row in zip(*rows, strict=True)]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            "Parameter `loss_fn` should take a single example, so that each can be clipped. Found"
            f" that it fails with `{first_line(error)}`. Use a mean or a sum over examples, or"
            " unit='client'."
        ) from error
    gradients, losses = zip(*each, strict=True)
    return torch.stack(gradients), torch.stack(losses)


def check_targets(targets: Any, examples: int) -> None:
    """Require one row of targets for each example, or none at all."""
    if targets is None or (isinstance(targets, Tensor) and targets.shape[:1] == (examples,)):
        return
    found = f"shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else type(targets)
    raise ValueError(
        f"Parameter `targets` should be a tensor with one row for each of the {examples} examples,"
        f" so that each has a loss of its own. Found {found}."
    )


def check_losses(loss: FunctionalLoss, outputs: Tensor, targets: Any, losses: Tensor) -> None:
    """Require that the loss of the batch is the mean or the sum over its examples."""
    if not all_finite(losses):
        raise NonFiniteError(
            f"The loss of each example should be finite. Found {int((~losses.isfinite()).sum())} of"
            f" {len(losses)} NaN or infinite. Nothing was sent; check the model's outputs and the"
            " targets (an example whose targets are all ignored has no mean loss)."
        )
    whole = float(loss.loss_of_outputs(outputs, targets))
    summed, scale = float(losses.sum()), max(abs(whole), float(losses.abs().mean()))
    fits = (
        math.isclose(whole, other, rel_tol=0.0, abs_tol=CLOSE * scale)
        for other in (summed / len(losses), summed)
    )
    if not any(fits):
        raise ValueError(
            "Parameter `loss_fn` should be a mean or a sum over examples, so that each can be"
            f" clipped. Found {whole:.6g} for {len(losses)} examples whose own losses have the mean"
            f" {summed / len(losses):.6g} (class weights or ignored targets in a mean? a loss that"
            " compares examples?). Use reduction='sum', or unit='client'."
        )
