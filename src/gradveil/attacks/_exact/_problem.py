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
from ._explanation import Explained, explain, output_gradients
from ._factors import Factors, factors_of
from ._local_order import order_locally
from ._polish import polish

_PROBES = 16
_INACTIVE = 0.02
"""The share of gradients at outputs that must be 0, at random inputs: ReLU has about a half."""
_ROUNDING = 1e-9
"""The relative squared misfit of a message that counts as rounding in single precision."""
_NOISE, _UNITS = 1.5, 0.8
"""Up to how many times the noise's power the misfit of a unit may be, and in how many units."""
_TURNED = 0.1
"""The relative squared misfit that units may add whose sign noise turns."""
_HIDDEN = 0.2
"""The share of noise in the message's power above which a small misfit says too little."""


@dataclass(frozen=True)
class Problem:
    """An observation whose first layer shows the rank of the batch."""

    observation: Observation
    call: Call
    factors: Factors

    def explained(self, batch: Batch) -> Reconstruction | None:
        """The whole batch with its labels, if it makes the message that was sent."""
        explained = self._with_labels(batch)
        if explained is None:
            return None
        found = self._as_found(explained)
        if found.loss <= _ROUNDING:
            return found
        noise = _noise_share(self.observation, self.factors)
        if self.observation.local is not None or noise < _ROUNDING / 10:
            return None
        polished = polish(explained, self.factors, self.observation, self.call)
        found = self._as_found(Explained(polished, explained.labels))
        fits = found.loss < _NOISE * noise + _TURNED and self._explains_most_units(found)
        return found if fits else None

    def _with_labels(self, batch: Batch) -> Explained | None:
        size, units = self.observation.batch_size, self.factors.units
        if self.observation.local is None:
            return explain(batch, units, self.observation, self.call)
        if len(batch.inputs) < size or self.call.layer.bias is None:
            return None  # repetitions and scales are read from gradients only
        return order_locally(batch, units, self.observation, self.call)

    def _as_found(self, explained: Explained) -> Reconstruction:
        """In the shape, dtype, range and order of the batch, with the misfit of the message."""
        observation, like = self.observation, next(iter(self.observation.sent.values()))
        shape = (observation.batch_size, *observation.input_shape)
        inputs = clamp(explained.inputs.to(like).reshape(shape), observation.low, observation.high)
        ordered = observation.local is not None and observation.local.batch_size is not None
        order = _order(explained.labels, None if ordered else observation.labels)
        inputs, labels = inputs[order], explained.labels[order].to(like.device)
        return Reconstruction(inputs, labels, misfit_of(observation, inputs, labels))

    def _explains_most_units(self, found: Reconstruction) -> bool:
        """Whether the weight's gradient is met up to noise, but for units that noise switches."""
        own = self.observation.message(found.targets)(found.inputs)[self.call.weight]
        error = (own - self.observation.sent[self.call.weight]).double().square().mean(dim=1)
        return bool((error < _NOISE * self.factors.noise**2).double().mean() > _UNITS)


def problem_of(observation: Observation, generator: torch.Generator) -> Problem | None:
    """The problem; `None` where the method does not apply."""
    if observation.task != "classification":  # labels are found by trying every class
        return None
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
    if factors is None or _noise_share(observation, factors) > _HIDDEN:
        return None
    return Problem(observation, call, factors)


def misfit_of(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """‖g(inputs) - sent‖² / ‖sent‖²."""
    return float(relative_misfit(message_of(observation)(inputs, labels), sent_row(observation)))


def _noise_share(observation: Observation, factors: Factors) -> float:
    """Of the message's power."""
    sent = sent_row(observation).double()
    return factors.noise**2 * sent.numel() / float(sent.square().sum())


def _has_inactive_units(observation: Observation, call: Call, generator: torch.Generator) -> bool:
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
