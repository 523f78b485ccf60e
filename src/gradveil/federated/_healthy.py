"""A client's checks of model, loss and message before anything is sent."""

import torch
from torch import Tensor, nn

from gradveil._checks import check_finite
from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, LocalUpdateMessage


class NoSignalError(ValueError):
    """A message of zeros only: the loss is constant, or the batch teaches nothing."""


def check_weights(model: nn.Module) -> None:
    """Require finite parameters: NaN weights make a NaN of every gradient.

    Buffers may hold infinities, as a mask of attention does.
    """
    check_finite(dict(model.named_parameters()), "the model's weights")


def check_signal(
    message: GradientMessage | LocalUpdateMessage,
    inputs: Tensor,
    values: Tensors,
    *,
    allow_zero: bool,
) -> None:
    """Require a loss that depends on the parameters, and a message that is not all zeros.

    A perfectly fitted batch has a gradient of zeros, too, so `allow_zero` lets it pass. A loss that
    depends on no parameter is an error in any case.
    """
    if any(bool(value.any()) for value in values.values()):
        return
    if not _depends_on_parameters(message, inputs):
        raise NoSignalError(
            "Parameter `loss_fn` should depend on the model's parameters. Found a loss that depends"
            " on none of them: a constant, or outputs that were detached. Nothing was sent; use"
            " the model's outputs in the loss."
        )
    if not allow_zero:
        raise NoSignalError(
            "The message of a batch should have at least one entry other than 0. Found that all of"
            f" its {sum(v.numel() for v in values.values())} entries are 0: the loss is flat here,"
            " all units are dead, or the batch is fitted perfectly. Nothing was sent; check model"
            " and loss, or pass `allow_zero=True` if batches may be fitted perfectly."
        )


def _depends_on_parameters(message: GradientMessage | LocalUpdateMessage, inputs: Tensor) -> bool:
    own = {name: p.detach().requires_grad_() for name, p in message.parameters.items()}
    with torch.enable_grad():
        return message.loss(own, inputs, message.targets).requires_grad
