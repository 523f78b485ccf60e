"""Which inputs FedAvg's mini-batches held, and their labels."""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gradveil._typing import Tensors
from gradveil.messages import LocalUpdateMessage

from .._evidence import Call
from .._observation import Observation
from ._assembly import Batch
from ._explanation import Explained, of_each_label


def order_locally(batch: Batch, units: Tensor, observation: Observation, call: Call) -> Explained:
    """The inputs in the order of the local steps, by playing these again.

    The gradient at an input's outputs, as the weight change shows it, has the direction of the one
    that its own label makes at the parameters of its own step. So each step takes those of the
    inputs left that fit best, and goes on from the parameters that they lead to.
    """
    local, inputs = observation.local, batch.inputs
    assert local is not None
    blank = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
    message = local.message(observation.model, observation.loss_fn, blank).double()
    now = message.parameters
    velocity = {name: torch.zeros_like(value) for name, value in now.items()}
    left, labels, order = torch.arange(len(inputs)), blank.clone(), torch.empty_like(blank[:0])
    while len(left) > 0:
        every = of_each_label(inputs[left], observation, call, now)[:, :, units]
        fits, own = cosine_similarity(-batch.deltas[left][:, None], every, dim=2).max(dim=1)
        best = fits.argsort(descending=True)[: local.batch_size or len(left)]
        labels[left[best]] = own[best]
        taken, order = left[best], torch.cat([order, left[best]])
        now, velocity = _advance(message, now, velocity, inputs[taken], labels[taken], observation)
        left = left[~torch.isin(left, taken)]
    return Explained(inputs[order], labels[order])


def _advance(
    message: LocalUpdateMessage,
    now: Tensors,
    velocity: Tensors,
    inputs: Tensor,
    labels: Tensor,
    observation: Observation,
) -> tuple[Tensors, Tensors]:
    """Parameters and velocity after the step that these inputs make."""
    shaped = inputs.reshape(-1, *observation.input_shape)
    return message.advance(now, velocity, message.gradient_at(now, labels)(shaped))
