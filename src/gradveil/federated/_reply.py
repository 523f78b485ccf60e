"""What a client sends, and what must hold before it does."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gradveil._checks import check_count, check_finite, check_structure
from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, LocalUpdateMessage, size_in_bytes


@dataclass(frozen=True)
class Reply:
    """All that leaves a client: the defended values, and how many examples they stand for.

    >>> import torch
    >>> Reply({"w": torch.ones(2)}, examples=16).examples
    16
    """

    values: Tensors
    examples: int

    @property
    def size(self) -> int:
        """Bytes of the values; see `size_in_bytes`."""
        return size_in_bytes(self.values)

    def check(self, expected: Tensors) -> None:
        """Require the names and shapes of `expected`, finite values and a count of examples."""
        check_structure(self.values, expected, "reply.values", "the server's parameters")
        check_finite(self.values, "reply.values")
        check_count(self.examples, "reply.examples")


class Costs(NamedTuple):
    """What one reply cost, and what it is worth. Local only: none of this is ever sent.

    A simulation may read it; in a deployment it stays in the client's process.
    """

    loss: float | None
    """Of the batch, undefended, before the step; `None` for a batch without examples."""
    utility_first: float | None
    """U1 of the mechanism that made the reply; `None` for a defense without one."""
    utility_second: float | None
    """U2, likewise."""
    seconds_gradient: float
    """One plain gradient (or local update) of the same batch, timed beside the reply."""
    seconds_defense: float
    """What the reply took beyond that; 0 where the clock says less."""


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


def load_received(model: nn.Module, received: Tensors) -> None:
    """Put a server's weights into the client's own model, all of them or none.

    Raises:
        ValueError: If names, shapes or types are not those of the model's `state_dict`, or if a
            number is not finite. The model then stays as it was. A buffer may have the infinities
            that the client's own has, as a mask of attention does.
    """
    expected = model.state_dict()
    check_structure(received, expected, "weights", "the client's own model")
    for name, value in received.items():
        _check_dtype(name, value, expected[name])
    cast = {name: value.to(expected[name].dtype) for name, value in received.items()}
    own_infinities = {name: _known_as_zero(value, expected[name]) for name, value in cast.items()}
    check_finite(own_infinities, "the weights that the server sent")
    model.load_state_dict(cast)


def _known_as_zero(value: Tensor, own: Tensor) -> Tensor:
    """The received tensor, with 0 where it has an infinity that the client's own has as well."""
    known = (value == own) & own.isinf()
    return value.masked_fill(known, 0)


def _check_dtype(name: str, value: Tensor, expected: Tensor) -> None:
    as_sent = torch.float32 if expected.dtype is torch.bfloat16 else expected.dtype
    if value.dtype not in (expected.dtype, as_sent):
        raise ValueError(
            "Parameter `weights` should have the types of the client's own model. Found"
            f" {value.dtype} for `{name}` instead of {expected.dtype}. Send the model's"
            " `state_dict`."
        )
