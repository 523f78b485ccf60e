"""Evaluation: loss and accuracy on held-out data."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradveil._checks import check_callable, check_kind, check_tensor
from gradveil.messages import LossFunction, check_match, gradient_of

_CHUNK = 256


class Evaluation(NamedTuple):
    """Means over the examples."""

    loss: float
    accuracy: float | None
    """`None` where outputs are no scores of classes."""


@torch.no_grad()
def evaluate(
    model: nn.Module, loss_fn: LossFunction, inputs: Tensor, targets: Tensor
) -> Evaluation:
    """The model in eval mode, whatever its mode; `loss_fn` is a mean over examples.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> model, targets = build_model("mlp", sizes=[3, 2]), torch.tensor([0, 0, 1, 1])
    >>> evaluate(model, cross_entropy, torch.zeros(4, 3), targets).accuracy
    0.5
    """
    check_kind(model, "model", nn.Module)
    check_callable(loss_fn, "loss_fn", "Use for example cross_entropy.")
    check_tensor(inputs, "inputs")
    check_tensor(targets, "targets")
    check_match(inputs, targets, tokens=gradient_of(inputs).takes_tokens)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    loss, right, scored = 0.0, 0, True
    for chunk, labels in zip(inputs.split(_CHUNK), targets.split(_CHUNK), strict=True):
        outputs = model(chunk)
        loss += float(loss_fn(outputs, labels)) * len(chunk)
        scored = scored and outputs.dim() == 2 and labels.dim() == 1
        right += int((outputs.argmax(1) == labels).sum()) if scored else 0
    for module, mode in modes.items():
        module.training = mode
    return Evaluation(loss / len(inputs), right / len(inputs) if scored else None)
