"""The targets that an attack goes on with."""

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._tensors import relative_misfit

from ..._labels import recover_labels
from ..._observation import Observation
from .._candidates import message_of, noise_start, sent_row
from .._optimise import Descent, minimise
from ._soft_targets import SoftTargets, soft_targets

STEPS, STARTS, RATE = 150, 3, 0.1
"""Of the search for targets that cannot be read off."""


def labels_of(observation: Observation, generator: torch.Generator) -> Tensor:
    """The targets that the threat model grants, or those that the message gives away.

    Class labels are read off the last layer. Other targets are looked for together with the inputs
    (`joint_targets`); the attack then goes on with them as if they were known.
    """
    if observation.labels is None and observation.task != "classification":
        return joint_targets(observation, generator)
    labels = recover_labels(observation, generator)
    return labels.to(next(iter(observation.sent.values())).device)


def joint_targets(observation: Observation, generator: torch.Generator) -> Tensor:
    """argmin over x and t of ‖g(x, t) - sent‖² / ‖sent‖², the t of it: DLG's search, by Adam.

    Reference: Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019.
    """
    soft, sent = soft_targets(observation, generator), sent_row(observation)
    message = message_of(observation)
    inputs = noise_start(observation, STARTS, generator)
    scale = _scale(observation, soft, inputs[0], generator)
    variables = normal_like(soft.blank.expand(STARTS, *soft.blank.shape), generator)
    size = inputs[0].numel()

    def parts(row: Tensor) -> tuple[Tensor, Tensor]:
        return row[:size].view_as(inputs[0]), scale * row[size:].view_as(soft.blank)

    def cost(row: Tensor, _: float) -> Tensor:
        x, t = parts(row)
        return relative_misfit(message(x, soft.relaxed(t)), sent)

    start = torch.cat([inputs.flatten(1), variables.flatten(1)], 1)
    free = torch.full_like(soft.blank, torch.inf).flatten()
    low, high = (
        None if end is None else torch.cat([end.to(free).expand(inputs[0].shape).flatten(), rest])
        for end, rest in ((observation.low, -free), (observation.high, free))
    )
    found = minimise(cost, start, Descent(STEPS, RATE, "adam", "cosine"), low=low, high=high)
    return soft.settled(parts(found.inputs[found.costs.argmin()])[1]).detach()


def _scale(
    observation: Observation, soft: SoftTargets, inputs: Tensor, generator: torch.Generator
) -> float:
    """The size of numbers at which the message is as large as what was sent.

    Of losses such as the squared error the gradient is affine in the targets.
    """
    if soft.classes is not None:
        return 1.0
    message, sent = message_of(observation), sent_row(observation)
    moved, still = normal_like(soft.blank, generator), soft.blank
    with torch.no_grad():
        change = (message(inputs, moved) - message(inputs, still)).norm()
    return float(sent.norm() / change.clamp(min=torch.finfo(change.dtype).tiny))
