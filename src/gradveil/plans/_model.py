"""Moments of a message from the model alone, or with what has been released before."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, Message, movable
from gradveil.sensitivity import Moments

from ._amounts import shaped_moments
from ._evidence import Evidence, gather
from ._fit import shape_of, shape_with
from ._kind import freshness
from ._levels import Levels, levels_of
from ._pooling import pool
from ._synthetic import synthetic

FEWEST, MOST = 8, 16
"""Made-up examples where examples add up, whatever the size of the private batch."""

EXPONENTS = (1.0, 0.4, 0.5, 0.0)
"""Of tensors, rows, columns and entries. Made-up examples are not real ones: at 1 their rows and
columns lose to isotropic noise on a fresh MNIST CNN."""

TENSORS = (1.0, 0.0, 0.0, 0.0)
"""Where examples do not add up, so that one batch is one draw of g."""

RELEASED = 0.25
"""The exponent of tensors where g² comes from released updates."""

PLAIN = 0.5
"""The least spread of log g² over tensors in released updates, over that of made-up examples. An
optimizer like Adam makes all tensors move alike: its updates say nothing of the gradients."""


def model_moments(
    message: Message, inputs: Tensor, generator: torch.Generator, *, curvature: bool = False
) -> Moments:
    """E g² and E‖∇_x g‖² on made-up examples, in a shape of tensors, rows and columns.

    Nothing of the private batch enters but its shape and type and those of its targets, so that a
    plan made from this reveals nothing. On a model that has been trained, made-up examples are of
    another kind than those that it knows (`freshness`): the shape is then isotropic.

    Args:
        message: What the client would send; its model is read, its targets are not.
        inputs: The private batch, whose values are not read.
        generator: For the made-up examples and the probes.
        curvature: Plan for the utility "curvature".

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil.models import build_model
    >>> from gradveil import GradientMessage
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([1]))
    >>> moments = model_moments(message, torch.ones(1, 3), torch.Generator().manual_seed(0))
    >>> sorted(moments.squared_values)[:2]
    ['layers.1.bias', 'layers.1.weight']
    """
    return released_moments(message, inputs, generator, None, curvature=curvature)


def released_moments(
    message: Message,
    inputs: Tensor,
    generator: torch.Generator,
    updates: Mapping[str, Tensor] | None,
    *,
    curvature: bool = False,
) -> Moments:
    """As `model_moments`, with E g² of the tensors from global updates that all have seen.

    They are used as far as made-up examples are not trusted, and where they look like gradients.

    Args:
        message: See `model_moments`, as for `inputs`, `generator` and `curvature`.
        inputs: The private batch, whose values are not read.
        generator: For the made-up examples and the probes.
        updates: Mean squares of the differences of consecutive models; `None` before the first.
        curvature: Plan for the utility "curvature".

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> generator = torch.Generator().manual_seed(0)
    >>> updates = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    >>> sorted(released_moments(message, torch.rand(2, 3), generator, updates).squared_values)[:2]
    ['layers.1.bias', 'layers.1.weight']
    """
    batches, trust = _made_up(message, inputs, generator, curvature)
    size = len(inputs)
    count = size * batches[0].entries
    alone = all(batch.example_squares is not None for batch in batches)
    exponents = [trust * e for e in (EXPONENTS if alone else TENSORS)]
    shape = shape_with(batches, size, exponents, curvature=curvature)
    if updates is not None and trust < 1:
        slopes, squares = pool(batches, size)
        levels, past = levels_of(slopes, squares), levels_of(slopes, dict(updates))
        if _spread(slopes, past) >= PLAIN * _spread(slopes, levels):
            powers = [(1 - trust) * RELEASED, 0.0, 0.0, 0.0]
            shape = shape_of([(levels, exponents), (past, powers)], squares)
    return shaped_moments(batches, shape, size, count, curvature=curvature)


def _made_up(
    message: Message, inputs: Tensor, generator: torch.Generator, curvature: bool
) -> tuple[list[Evidence], float]:
    """What made-up examples say, and how far they may be trusted.

    Examples are taken one by one where rows and columns are trusted, or for the curvature.
    """
    trust = freshness(message, inputs, generator)
    size, batches = len(inputs), 2
    if isinstance(message, GradientMessage):
        size, batches = min(max(size, FEWEST), MOST), 1
    made = [synthetic(movable(message), inputs, generator, size) for _ in range(batches)]
    alone = trust > 0 or curvature
    return [gather(own, x, generator, examples=alone) for own, x in made], trust


def _spread(slopes: Tensors, levels: Mapping[str, Levels]) -> float:
    """The standard deviation over tensors of log g², given the levels of log √(s² / g²)."""
    logs: Sequence[Tensor] = [
        slope.double().mean().clamp(min=1e-300).log() - 2 * levels[name].tensor.double()
        for name, slope in slopes.items()
    ]
    return float(torch.stack([*logs]).std()) if len(logs) > 1 else 0.0
