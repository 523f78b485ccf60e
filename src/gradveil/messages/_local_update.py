"""FedAvg's message: the weight change after local steps."""

from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import (
    WrongType,
    WrongValue,
    check_at_most,
    check_count,
    check_not_negative,
    check_positive,
)
from gradveil._tensors import Tensors

from ._functional import FunctionalLoss, LossFunction, check_match
from ._gradient import GradientMessage


@dataclass(frozen=True)
class LocalSteps:
    """FedAvg's local training, public in every federation: what `LocalUpdateMessage` takes.

    >>> LocalSteps(lr=0.1, steps=5).batch_size is None
    True
    """

    lr: float
    steps: int
    batch_size: int | None = None
    """Examples in a local mini-batch; the client's whole batch if `None`."""
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive(self.lr, "lr")
        check_at_most(self.lr, "lr")
        check_count(self.steps, "steps")
        if self.batch_size is not None:
            check_count(self.batch_size, "batch_size")
        check_not_negative(self.momentum, "momentum")
        if self.momentum >= 1:
            raise WrongValue("momentum", "be in [0, 1)", str(self.momentum), assigned=True)

    def message(
        self, model: nn.Module, loss_fn: LossFunction, targets: Tensor, *, seed: int = 0
    ) -> "LocalUpdateMessage":
        """The weight change that these steps make; `seed` as in `LocalUpdateMessage`."""
        return LocalUpdateMessage(model, loss_fn, targets, **asdict(self), seed=seed)


class LocalUpdateMessage:
    """Θ_T - Θ_0 after T steps of local SGD, as a differentiable function of the inputs.

    Step t takes mini-batch t of the batch, in order and again from the start after the last, and
    v ← momentum · v + ∇L, Θ ← Θ - lr · v, as `torch.optim.SGD` does. Every step sees parameters
    that earlier examples have moved, so examples do not enter as a sum.

    Args:
        model: Any module; never modified.
        loss_fn: Maps (outputs, targets) to one number.
        targets: A tensor with the label of each example.
        lr, steps, batch_size, momentum: As in `LocalSteps`.
        seed: For layers that draw random numbers (dropout in training mode): the same ones in
            every step.

    >>> message = LocalUpdateMessage(
    ...     nn.Linear(3, 2), nn.functional.cross_entropy, torch.tensor([0, 1]), lr=0.1, steps=2)
    >>> sorted(message(torch.ones(2, 3)))
    ['bias', 'weight']
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        targets: Tensor,
        *,
        lr: float,
        steps: int,
        batch_size: int | None = None,
        momentum: float = 0.0,
        seed: int = 0,
    ) -> None:
        LocalSteps(lr, steps, batch_size, momentum)  # checks them
        if not isinstance(targets, Tensor):
            found, advice = type(targets).__name__, "Convert it with torch.as_tensor."
            raise WrongType("targets", "be a torch.Tensor, to cut into mini-batches", found, advice)
        self.loss = FunctionalLoss(model, loss_fn, seed)
        self.targets = targets
        self.lr, self.steps, self.batch_size, self.momentum = lr, steps, batch_size, momentum

    @property
    def parameters(self) -> Tensors:
        """The trainable parameters before the local steps."""
        return self.loss.parameters

    def __call__(self, inputs: Tensor) -> Tensors:
        """The weight change, by parameter name; differentiable with respect to the inputs."""
        batches = self.batches(inputs)
        start = self.parameters
        now, velocity = start, {name: torch.zeros_like(p) for name, p in start.items()}
        for step in range(self.steps):
            batch, targets = batches[step % len(batches)]
            now, velocity = self.advance(now, velocity, self.gradient_at(now, targets)(batch))
        return {name: now[name] - start[name] for name in start}

    def gradient_at(self, parameters: Tensors, targets: Any) -> GradientMessage:
        """The gradient that a step at these parameters takes."""
        message = GradientMessage(self.loss.model, self.loss.loss_fn, targets)
        message.loss = self.loss.at(parameters)
        return message

    def of(self, targets: Tensor) -> "LocalUpdateMessage":
        """The message of other examples, with these targets."""
        other = copy(self)
        other.targets = targets
        return other

    def advance(
        self, now: Tensors, velocity: Tensors, gradient: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Parameters and velocity after one step of SGD."""
        velocity = {name: self.momentum * velocity[name] + gradient[name] for name in now}
        return {name: now[name] - self.lr * velocity[name] for name in now}, velocity

    def batches(self, inputs: Tensor) -> list[tuple[Tensor, Any]]:
        """The mini-batches that the steps take in turn."""
        check_match(inputs, self.targets)
        size = self.batch_size or len(inputs)
        return list(zip(inputs.split(size), self.targets.split(size), strict=True))
