"""The linear layers of a model, found by watching it run; the model stays as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._random import normal_like
from gradveil._typing import Tensors
from gradveil.messages import FunctionalLoss, TokenGradient, random_ids

from .._observation import Observation


@dataclass(frozen=True)
class Call:
    """One linear layer at work."""

    name: str
    layer: nn.Linear
    inputs: Tensor

    @property
    def weight(self) -> str:
        """The name of its weight in a message."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias(self) -> str:
        """The name of its bias in a message."""
        return f"{self.name}.bias" if self.name else "bias"


def linear_calls(
    observation: Observation, inputs: Tensor, parameters: Tensors | None = None
) -> tuple[list[Call], Tensor]:
    """The calls of linear layers in the order in which they happen, and the model's outputs."""
    loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)
    with _recorded(observation.model) as calls, torch.no_grad():
        outputs = loss.outputs(parameters or loss.parameters, inputs)
    return calls, outputs


def input_layer(observation: Observation, generator: torch.Generator) -> Call | None:
    """The first linear layer, if it reads the inputs themselves, flattened or not."""
    probe = random_inputs(observation, 2, generator)
    for call in linear_calls(observation, probe)[0][:1]:
        if call.inputs.numel() == probe.numel() and torch.equal(
            call.inputs.flatten(), probe.flatten()
        ):
            return call
    return None


def last_layer(calls: list[Call], observation: Observation) -> Call:
    """The last linear layer that makes one number for each class and whose weight was sent."""
    for call in reversed(calls):
        fits = call.layer.out_features == observation.num_classes
        if fits and call.weight in observation.sent:
            return call
    layers = [f"{c.name} ({c.layer.in_features} to {c.layer.out_features})" for c in calls]
    raise ValueError(
        f"Parameter `observation.model` should end in a trainable `nn.Linear` with"
        f" {observation.num_classes} outputs, from whose gradient labels are read. Found linear"
        f" layers {layers or 'none'}. Grant the labels: `ThreatModel(labels='known')`."
    )


def random_inputs(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """Standard normal inputs, as normalised data is on average, within the range if known.

    Tokens are drawn evenly from all that there are.
    """
    reference = next(iter(observation.sent.values()))
    if observation.tokens:
        ids = torch.empty(count, *observation.input_shape, dtype=torch.int64)
        message = TokenGradient(observation.model, observation.loss_fn, None)
        return random_ids(message, ids.to(reference.device), generator)
    blank = torch.empty(
        count, *observation.input_shape, dtype=reference.dtype, device=reference.device
    )
    drawn = normal_like(blank, generator)
    for bound, cut in ((observation.low, torch.maximum), (observation.high, torch.minimum)):
        if bound is not None:
            drawn = cut(drawn, bound.to(drawn))
    return drawn


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Call]]:
    calls: list[Call] = []
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):

            def record(layer: nn.Module, arguments: tuple[Any, ...], name: str = name) -> None:
                assert isinstance(layer, nn.Linear)
                calls.append(Call(name, layer, arguments[0].detach()))

            handles.append(module.register_forward_pre_hook(record))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
