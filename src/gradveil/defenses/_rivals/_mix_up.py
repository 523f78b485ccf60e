"""Pairs of examples mixed into one."""

from dataclasses import dataclass

from gradveil._checks import check_ratio
from gradveil.messages import Message

from ._input_defense import InputDefense
from ._mixing import mixed_message


@dataclass(frozen=True)
class MixUp(InputDefense):
    """x̃_b = w x_b + (1 - w) x_{b+1}, L̃ = w L(x̃, y_b) + (1 - w) L(x̃, y_{b+1}) (Zhang et al. 2018).

    Example b is mixed with the next one of the batch, the last with the first. Zhang et al. draw
    pairs and w anew for each batch: few bits, which an attacker can try one after the other, so
    they are fixed here and count as known.

    Guarantee: none. In a batch of n this is a matrix w I + (1 - w) P of the examples, which has an
    inverse unless w = 1/2 and n is even. A batch of one is not changed.

    Args:
        weight: w, the share of the example itself.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> sorted(MixUp(weight=0.7)(message, torch.ones(2, 3)))
    ['layers.1.bias', 'layers.1.weight']
    """

    label = "MixUp"

    weight: float = 0.7

    def __post_init__(self) -> None:
        check_ratio(self.weight, "weight")

    def prepared(self, message: Message) -> Message:
        """The message of the mixed examples."""
        return mixed_message(message, (self.weight, 1 - self.weight))
