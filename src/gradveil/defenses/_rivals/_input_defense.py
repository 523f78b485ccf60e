"""The base class of defenses that change the inputs and send the message of these."""

from abc import abstractmethod

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism
from gradveil.messages import Message
from gradveil.sensitivity import Moments

from .._micro_batches import observe_values
from .._no_defense import NoDefense
from .._planning import FixedDefense


class InputDefense(FixedDefense):
    """Sends the message of other inputs than the private ones, bare.

    Guarantee: none. What goes into the message can be found from it as without a defense; what it
    hides is what the change of the inputs loses, and only that.

    Nothing about the change is secret, so that an attacker who knows the defense attacks the whole
    of change and message (`prepared`). Utilities are those of the changed message, beside which
    nothing is lost: what the change costs shows in training.
    """

    @property
    def plan_is_private(self) -> bool:
        """Not unless a subclass observes or responds in a way of its own."""
        return self.steps_unlike(InputDefense)

    @abstractmethod
    def prepared(self, message: Message) -> Message:
        """The message as a function of the private inputs, with the change in it."""

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The values of the changed inputs."""
        self.check_batch(inputs)
        return observe_values(self.prepared(message), inputs)

    def plan(self, moments: Moments) -> Mechanism:
        """Everything is sent as it is."""
        return NoDefense().plan(moments)

    def check_plans(self, purpose: str) -> None:
        """Refuse to be taken apart: without the change of the inputs it is no defense."""
        raise TypeError(
            f"A defense {purpose} should plan from the message that it gets. Found"
            f" {type(self).__name__}, which changes the inputs first. Use it by itself."
        )
