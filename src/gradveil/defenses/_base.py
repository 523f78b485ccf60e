"""What every defense can do."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import check_finite, check_inputs, check_tensor, check_values
from gradveil._random import advance, generator_or_fresh, seed_from
from gradveil._typing import Tensors
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import GradientMessage, Message, check_message, explained, values_of
from gradveil.messages._functional import LossFunction
from gradveil.sensitivity import Estimator, Moments, measure_with_values


class Defense(ABC):
    """A pure, deterministic map from Moments to the Mechanism that is applied to the message.

    A new defense is one small file: implement `plan`, and its bound, its utility and its strongest
    attacker come for free.
    """

    estimator: Estimator | str = "auto"
    """How the sensitivities are measured when the defense is called on a message."""

    granularity: str = "parameter"
    """At "layer", "auto" measures only what one level per tensor needs."""

    @property
    def needs_sensitivities(self) -> bool:
        """Whether `plan` looks at the sensitivities; if not, none are measured."""
        return True

    @property
    def has_target_error(self) -> bool:
        """Whether an error is to be guaranteed: then sensitivities are measured on all examples."""
        noise = getattr(self, "noise", None)
        return any(getattr(one, "target_error", None) is not None for one in (self, noise))

    @abstractmethod
    def plan(self, moments: Moments) -> AnyMechanism:
        """The mechanism for a message with these moments."""

    def __call__(
        self, message: Message, inputs: Tensor, generator: torch.Generator | None = None
    ) -> Tensors:
        """Measure, plan and apply: what the client sends, by parameter name."""
        check_message(message)
        check_tensor(inputs, "inputs")
        generator = generator_or_fresh(generator)
        values, moments = self.observe(message, inputs.detach(), generator)
        mechanism = self.plan(moments)
        del moments  # two tensors of the size of the message that are not needed any more
        return mechanism.apply(values, generator)

    def observe(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> tuple[Tensors, Moments]:
        """The message's values and as much of its moments as `plan` needs."""
        if self.needs_sensitivities:
            few = self.granularity == "layer" and not self.has_target_error
            estimator = "layers" if few and self.estimator == "auto" else self.estimator
            return measure_with_values(message, inputs, estimator, generator=generator)
        return observe_values(message, inputs)

    def backward(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        inputs: Tensor,
        targets: Any,
        generator: torch.Generator | None = None,
    ) -> Tensors:
        """Add the defended gradient to `.grad`, in place of `loss_fn(model(x), y).backward()`.

        Returns what was added, which is all that a client may send. Unlike a forward pass in
        training mode this leaves the running statistics of BatchNorm as they are. Dropout draws
        from the generator, too.
        """
        check_inputs(inputs)
        generator = generator_or_fresh(generator)
        message = GradientMessage(model, loss_fn, targets, seed=seed_from(generator))
        sent = self(message, inputs, generator)
        advance(generator)  # a defense may have drawn nothing: the next call must differ
        for name, parameter in model.named_parameters():
            if name in sent:
                old, new = parameter.grad, sent[name].detach()
                parameter.grad = new.clone() if old is None else old + new
        return sent


def observe_values(message: Message, inputs: Tensor) -> tuple[Tensors, Moments]:
    """The message's values and the moments that need no derivative."""
    check_inputs(inputs)
    with explained(message, inputs):
        values = values_of(message, inputs)
    check_values(values, "message(inputs)")
    check_finite(values, "message(inputs)")
    return values, Moments.of_values(values, inputs.numel())
