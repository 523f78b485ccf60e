"""Moments of a message from public examples."""

import torch
from torch import Tensor

from gradveil.messages import Message, MovableMessage, movable
from gradveil.sensitivity import Estimator, Moments

from ._amounts import shaped_moments
from ._evidence import gather
from ._fit import fit_shape
from ._kind import trust_in

MOST_NUMBERS = 2**28
"""That the evidence of all batches may hold; a large model gets fewer batches, two at least."""


def public_moments(
    message: Message,
    inputs: Tensor,
    examples: tuple[Tensor, Tensor],
    generator: torch.Generator,
    *,
    batch_size: int | None = None,
    estimator: Estimator | str = "auto",
    judged: bool = False,
    curvature: bool = False,
) -> Moments:
    """E g² and E‖∇_x g‖² of public examples, in a shape that is shrunk as far as they demand it.

    Nothing of the private batch enters but its shape and type.

    Args:
        message: What the client would send; its model is read, its targets are not.
        inputs: The private batch, whose values are not read.
        examples: Public inputs and targets.
        generator: For the order of the examples and the probes.
        batch_size: Of a public batch; that of the private one if `None`, or half of the examples
            where there are fewer than two batches.
        estimator: How sensitivities are measured.
        judged: Measure sensitivities twice, for a `target_error`.
        curvature: Plan for the utility "curvature".

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> from gradveil import GradientMessage
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([1]))
    >>> public = torch.rand(8, 3), torch.randint(2, (8,))
    >>> generator = torch.Generator().manual_seed(0)
    >>> moments = public_moments(message, torch.ones(1, 3), public, generator)
    >>> sorted(moments.squared_values)[:2]
    ['layers.1.bias', 'layers.1.weight']
    """
    own, size = movable(message), len(inputs)
    public, targets = shuffled(inputs, examples, generator)
    each = min(batch_size or size, max(1, len(public) // 2))
    most = max(2, MOST_NUMBERS // (4 * numbers_in(own)))
    batches = [
        gather(own.of(t), x, generator, estimator, judged=judged)
        for x, t in _batches(public, targets, each)[:most]
    ]
    trust = trust_in(own.of(targets), public, generator)
    shape = fit_shape(batches, size=size, trust=trust, curvature=curvature)
    count = size * batches[0].entries
    return shaped_moments(batches, shape, size, count, curvature=curvature)


def shuffled(
    like: Tensor, examples: tuple[Tensor, Tensor], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The examples in a random order, on the device and in the type of the private inputs."""
    inputs, targets = examples
    order = torch.randperm(len(inputs), generator=generator, device=generator.device)
    inputs, targets = inputs[order.to(inputs.device)], targets[order.to(targets.device)]
    return inputs.to(like), targets.to(like.device)


def numbers_in(message: MovableMessage) -> int:
    """How many entries the message has, as its model says; 1 where it does not."""
    parameters = getattr(message, "parameters", None)
    return sum(p.numel() for p in parameters.values()) if isinstance(parameters, dict) else 1


def _batches(inputs: Tensor, targets: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of exactly that size; what is left over is not used."""
    whole = len(inputs) // size * size
    return list(zip(inputs[:whole].split(size), targets[:whole].split(size), strict=True))
