"""Labels, repetitions and scales of inputs, from the gradients at a layer's outputs."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gradveil._typing import Tensors
from gradveil.messages import FunctionalLoss

from .._evidence import Call
from .._observation import Observation
from ._assembly import Batch

_DECADES, _EACH = 3, 10
"""Scales are tried from 10⁻³ to 10³ times a root mean square of 1, ten in each decade."""
_CUTS = 45


class Explained(NamedTuple):
    """A whole batch."""

    inputs: Tensor
    """Shape (batch size, inputs)."""
    labels: Tensor


def explain(batch: Batch, units: Tensor, observation: Observation, call: Call) -> Explained | None:
    """The labels of the inputs, and how often each occurs; `None` if that does not add up.

    An input that occurs with labels c_1, c_2, ... has the gradient Σ_i δ(c_i) at its outputs, each
    of which the attacker can compute.
    """
    if call.layer.bias is None:
        batch = _scaled(batch, units, observation, call)
    every = of_each_label(batch.inputs, observation, call)[:, :, units]
    missing = observation.batch_size - len(batch.inputs)
    if missing == 0:
        cosines = cosine_similarity(batch.deltas[:, None], every, dim=2)
        return Explained(batch.inputs, cosines.argmax(dim=1))
    counts = torch.stack(
        [_counts(own, each, missing) for own, each in zip(batch.deltas, every, strict=True)]
    )
    if int(counts.sum()) != observation.batch_size:
        return None
    image, label = torch.meshgrid(*(torch.arange(n) for n in counts.shape), indexing="ij")
    repeats = counts.flatten()
    inputs = batch.inputs[image.flatten().repeat_interleave(repeats)]
    return Explained(inputs, label.flatten().repeat_interleave(repeats))


def output_gradients(
    inputs: Tensor,
    labels: Tensor,
    observation: Observation,
    call: Call,
    parameters: Tensors | None = None,
) -> Tensor:
    """∂L/∂u of each example in float64, as in a whole batch; shape (examples, units)."""
    count, missing = len(inputs), max(0, observation.batch_size - len(inputs))
    places = torch.cat([torch.arange(count), torch.zeros(missing, dtype=torch.long)])
    shaped = inputs[places].double().reshape(-1, *observation.input_shape)
    shift = shaped.new_zeros(len(places), call.layer.out_features, requires_grad=True)
    loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0).double()
    handle = call.layer.register_forward_hook(lambda _, __, outputs: outputs + shift)
    try:
        with torch.enable_grad():
            value = loss(parameters or loss.parameters, shaped, labels[places])
            return torch.autograd.grad(value, shift)[0][:count]
    finally:
        handle.remove()


def of_each_label(
    inputs: Tensor, observation: Observation, call: Call, parameters: Tensors | None = None
) -> Tensor:
    """∂L/∂u of each example for each label it could have; shape (examples, classes, units)."""
    blank = torch.empty(len(inputs), dtype=torch.long, device=inputs.device)
    each = [
        output_gradients(inputs, torch.full_like(blank, label), observation, call, parameters)
        for label in range(observation.num_classes)
    ]
    return torch.stack(each, dim=1)


def _counts(own: Tensor, each: Tensor, missing: int) -> Tensor:
    """How often one input occurs with each label: the whole numbers that fit best."""
    size = each.norm(dim=1).mean()
    best, least = torch.zeros(len(each), dtype=torch.long), torch.inf
    for total in range(1, missing + 2):
        system = torch.cat([each.T, size * torch.ones_like(each[:1, 0:1]).expand(1, len(each))])
        target = torch.cat([own, size * total * torch.ones_like(own[:1])])
        solved = torch.linalg.lstsq(system, target[:, None], driver="gelsd").solution[:, 0]
        counts = solved.round().clamp_min(0)
        misfit = float((own - counts @ each).norm())
        if misfit < least and int(counts.sum()) == total:
            best, least = counts.long(), misfit
    return best


def _scaled(batch: Batch, units: Tensor, observation: Observation, call: Call) -> Batch:
    """The scale that a layer without a bias leaves open: s with s δ(s x) = the gradient at x.

    All labels and a grid of scales first, then a search by golden sections.
    """
    unit = batch.inputs.square().mean(dim=1, keepdim=True).sqrt()
    inputs, deltas = batch.inputs / unit, batch.deltas * unit
    grid = torch.logspace(-_DECADES, _DECADES, 2 * _DECADES * _EACH + 1).to(inputs)

    def misfit(scales: Tensor, labels: Tensor) -> Tensor:
        own = output_gradients(scales[:, None] * inputs, labels, observation, call)[:, units]
        distance: Tensor = (scales[:, None] * own - deltas).norm(dim=1)
        return distance

    blank = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
    tried = torch.stack(
        [
            torch.stack([misfit(scale.expand(len(inputs)), blank + label) for scale in grid])
            for label in range(observation.num_classes)
        ]
    )
    place = tried.flatten(0, 1).argmin(dim=0)
    labels, middle = place // len(grid), grid[place % len(grid)]
    low, high = (middle * 10 ** (sign / _EACH) for sign in (-1, 1))
    share = (5**0.5 - 1) / 2
    for _ in range(_CUTS):
        left, right = high - share * (high - low), low + share * (high - low)
        lower = misfit(left, labels) < misfit(right, labels)
        low, high = torch.where(lower, low, left), torch.where(lower, right, high)
    scales = ((low + high) / 2)[:, None]
    return Batch(scales * inputs, deltas / scales, batch.agreement)
