"""The result of one defended step."""

from typing import NamedTuple

from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism


class Defended(NamedTuple):
    """A message before and after its defense. Only `sent` may leave the client.

    >>> import torch
    >>> from gradveil import GradientNoise
    >>> message = lambda inputs: {"w": inputs.sum(0)}
    >>> defended = GradientNoise(scale=0.1).respond(message, torch.ones(2, 3))
    >>> defended.values["w"], defended.mechanism.std["w"]
    (tensor([2., 2., 2.]), tensor([0.1000, 0.1000, 0.1000]))
    """

    values: Tensors
    """The message as it would be without a defense."""
    mechanism: AnyMechanism | None
    """What made `sent` of `values`; `None` for a defense that has no mechanism."""
    sent: Tensors
    """What the client sends, by parameter name."""
