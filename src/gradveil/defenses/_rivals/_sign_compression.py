"""Signs in place of numbers."""

from dataclasses import dataclass

import torch

from gradveil._checks import check_positive
from gradveil._typing import Tensors
from gradveil.mechanisms import SignMechanism
from gradveil.messages import MappedMessage, Message
from gradveil.sensitivity import Moments, check_moments

from .._planning import FixedDefense


@dataclass(frozen=True)
class SignCompression(FixedDefense):
    """y_i = step · sign(g_i), one bit for each parameter (signSGD, Bernstein et al. 2018).

    Guarantee: none. It is deterministic, and signs tell directions well.

    Signs do not change with the size of a tensor. So an attacker who knows the defense looks at
    g / mean|g| of each tensor (`prepared`), each entry of which lies on the side of 0 that was
    sent: a gradient of almost 0 would fit any signs otherwise.

    Args:
        step: What is sent for a positive entry; public. For SGD it is a part of the learning rate.

    >>> SignCompression()(lambda inputs: {"w": inputs.sum(0)}, torch.tensor([[1.2, -0.6]]))
    {'w': tensor([ 1., -1.])}
    """

    amount_name = "step"

    step: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.step, "step")

    def prepared(self, message: Message) -> Message:
        """step · g / mean|g| of each tensor, which has the same signs."""
        return MappedMessage(message, after=self._normalised)

    def plan(self, moments: Moments) -> SignMechanism:
        """The same for all messages."""
        check_moments(moments)
        return SignMechanism(self.step)

    def _normalised(self, values: Tensors) -> Tensors:
        tiny = {name: torch.finfo(value.dtype).tiny for name, value in values.items()}
        means = {name: v.abs().mean().clamp(min=tiny[name]) for name, v in values.items()}
        return {name: self.step * (value / means[name]) for name, value in values.items()}
