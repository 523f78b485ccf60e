"""What exact inversion needs of an observation, and the test that a batch must pass."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._tensors import relative_misfit

from .._evidence import Call, input_layer, random_inputs
from .._observation import Observation
from .._reconstruction import Reconstruction
from .._search import clamp, message_of, sent_row
from ._assembly import Batch
from ._explanation import explain, output_gradients
from ._factors import Factors, factors_of

_PROBES = 16
_INACTIVE = 0.02
"""The share of gradients at outputs that must be 0, at random inputs: ReLU has about a half."""
_ROUNDING = 1e-9
"""The relative squared misfit of a message that counts as rounding in single precision."""
_NOISE = 3.0
"""Up to how many standard deviations of the noise the message may be missed, on average."""


@dataclass(frozen=True)
class Problem:
    """An observation whose first layer shows the rank of the batch."""

    observation: Observation
    call: Call
    factors: Factors

    def explained(self, batch: Batch) -> Reconstruction | None:
        """The whole batch with its labels, if it makes the message that was sent."""
        observation = self.observation
        explained = explain(batch, self.factors.units, observation, self.call)
        if explained is None:
            return None
        sent = sent_row(observation)
        shape = (observation.batch_size, *observation.input_shape)
        inputs = clamp(explained.inputs.to(sent).reshape(shape), observation.low, observation.high)
        order = _order(explained.labels, observation.labels)
        inputs, labels = inputs[order], explained.labels[order].to(sent.device)
        loss = misfit_of(observation, inputs, labels)
        noise = self.factors.noise**2 * sent.numel() / float(sent.double().square().sum())
        if loss > max(_ROUNDING, _NOISE**2 * noise):
            return None
        return Reconstruction(inputs, labels, loss)


def problem_of(observation: Observation, generator: torch.Generator) -> Problem | None:
    """The problem; `None` where the method does not apply."""
    call = input_layer(observation, generator)
    if call is None or call.inputs.dim() != 2 or call.weight not in observation.sent:
        return None
    if call.layer.bias is not None and call.bias not in observation.sent:
        return None
    if min(call.layer.weight.shape) <= observation.batch_size:
        return None
    if not _has_inactive_units(observation, call, generator):
        return None
    factors = factors_of(observation.sent, call, observation.batch_size)
    return None if factors is None else Problem(observation, call, factors)


def misfit_of(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """‖g(inputs) - sent‖² / ‖sent‖²."""
    return float(relative_misfit(message_of(observation)(inputs, labels), sent_row(observation)))


def _has_inactive_units(
    observation: Observation, call: Call, generator: torch.Generator
) -> bool:
    """Whether gradients are exactly 0 in some units at random inputs, and not in all."""
    probe = random_inputs(observation, _PROBES, generator)
    labels = torch.zeros(_PROBES, dtype=torch.long, device=probe.device)
    zeros = (output_gradients(probe, labels, observation, call) == 0).double().mean()
    return bool(_INACTIVE < zeros < 1)


def _order(labels: Tensor, wanted: Tensor | None) -> Tensor:
    """The places that bring these labels into the wanted order, where that is known and fits."""
    if wanted is None or not torch.equal(labels.sort()[0], wanted.cpu().sort()[0]):
        return torch.arange(len(labels))
    order = torch.empty_like(labels)
    order[wanted.cpu().argsort(stable=True)] = labels.argsort(stable=True)
    return order
