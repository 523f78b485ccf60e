"""Loading of weights that a server sent, after checks."""

import torch
from torch import Tensor, nn

from gradveil._checks import check_finite, check_structure
from gradveil._typing import Tensors


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
