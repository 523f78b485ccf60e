"""A user's module as a pure function of its parameters and inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from gradveil._typing import Tensors

LossFunction = Callable[[Any, Any], Tensor]


class FunctionalLoss:
    """The loss as a pure function (parameters, inputs, targets) of a module that stays untouched.

    Buffers are cloned at each evaluation, so BatchNorm in training mode uses the statistics of
    the batch and leaves the running ones alone. Layers that draw random numbers in training mode
    (dropout) draw the same ones at every evaluation, from `seed`: the message is one function,
    and the global generator keeps its state.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, seed: int) -> None:
        self.model = model
        self.loss_fn = loss_fn
        self.seed = seed
        self.parameters = trainable_parameters(model)

    def outputs(self, parameters: Tensors, inputs: Tensor) -> Any:
        """What the model returns with these parameters."""
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with self._fixed_randomness(inputs.device):
            return functional_call(self.model, {**parameters, **buffers}, (inputs,))

    def __call__(self, parameters: Tensors, inputs: Tensor, targets: Any) -> Tensor:
        """The scalar loss with these parameters."""
        return self.loss_of_outputs(self.outputs(parameters, inputs), targets)

    def loss_of_outputs(self, outputs: Any, targets: Any) -> Tensor:
        """The scalar loss of what the model returned."""
        loss = self.loss_fn(outputs, targets)
        if not isinstance(loss, Tensor) or loss.dim() > 0:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                "Parameter `loss_fn` should return one number (a 0-d tensor). Found a result of"
                f" shape or type {found}. Use a loss with reduction 'mean' or 'sum'."
            )
        return loss

    def _fixed_randomness(self, device: torch.device) -> Any:
        if not any(module.training for module in self.model.modules()):
            return nullcontext()
        return _seeded(self.seed, device)


def trainable_parameters(model: nn.Module) -> Tensors:
    """The parameters that enter the message: each once, frozen ones left out."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"Parameter `model` should be a torch.nn.Module. Found {type(model).__name__}."
        )
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError(
            "Parameter `model` should have at least one parameter with `requires_grad=True`."
            " Found none. Unfreeze a layer, or add one."
        )
    return parameters


def couples_examples(model: nn.Module) -> bool:
    """Whether a layer mixes the examples of a batch, or draws one random mask for all of them."""
    return any(
        (isinstance(m, _BatchNorm) and (m.training or m.running_mean is None))
        or (isinstance(m, _DropoutNd) and m.training and m.p > 0)
        for m in model.modules()
    )


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
