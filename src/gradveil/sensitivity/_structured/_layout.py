"""What `Structured` must know of a model before it can use it, found once per model."""

import sys
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gradveil._random import normal_like
from gradveil.messages import GradientMessage

from ._sweeps import TangentGraph

ROOM = 2**26
"""How many numbers a graph and its tangents may take, where the parameters take less than half."""

LARGE_OUTPUTS = 20
"""Times the outputs of an example: where its activations are fewer, cutting would not pay."""


@dataclass(frozen=True)
class Layout:
    """Where a model's parameters are used."""

    opaque: frozenset[str]
    """Parameters outside known layers, or of layers whose first axis is not the examples'."""
    known_share: float
    """The share of all entries that lie in layers `Structured` knows."""
    entries: int
    """Of all parameters."""
    activations: int
    """Numbers that enter and leave the known layers, for each example."""
    outputs: int
    """Numbers that the model returns for each example."""

    def examples_at_a_time(self, sweeps: int) -> int:
        """How many examples fit: each has activations, their gradients, and tangents by sweep.

        Every part of a batch computes the loss of all outputs, so large outputs are not cut.
        """
        if LARGE_OUTPUTS * self.outputs > self.activations:
            return sys.maxsize
        needed = (2 + sweeps) * self.activations
        return max(1, max(ROOM, 2 * self.entries) // max(1, needed))


_LAYOUTS: WeakKeyDictionary[nn.Module, dict[Any, Layout]] = WeakKeyDictionary()


def layout_of(message: GradientMessage, inputs: Tensor) -> Layout:
    """The layout of the message's model for inputs of this shape, and what is trained of it."""
    layouts = _LAYOUTS.setdefault(message.loss.model, {})
    key = (len(inputs) > 1, inputs.shape[1:], tuple(message.parameters))
    if key not in layouts:
        layouts[key] = _find(*next(message.parts(inputs, 2)))
    return layouts[key]


def _find(message: GradientMessage, inputs: Tensor) -> Layout:
    """Move the first of two examples.

    In a layer that keeps examples on its first axis, every tangent of the other vanishes;
    sequence-first models are the usual exception.
    """
    graph = TangentGraph(message, inputs)
    direction = normal_like(inputs, torch.Generator().manual_seed(0))
    direction[1:] = 0
    tangents = graph.sweep(direction, direction.new_ones(len(inputs)))
    pairs = zip(graph.uses, tangents.inputs, tangents.signals, strict=True)
    mixing = [use for use, *pair in pairs if not all(_stays(t, len(inputs)) for t in pair)]
    opaque = frozenset([*(name for use in mixing for name in use.names), *graph.others])
    sizes = {name: parameter.numel() for name, parameter in message.parameters.items()}
    unknown = sum(sizes[name] for name in opaque)
    entries = sum(sizes.values())
    activations = sum(use.a.numel() + use.h.numel() for use in graph.uses) // len(inputs)
    with torch.no_grad():
        outputs = message.loss.outputs(message.parameters, inputs)
    returned = outputs.numel() // len(inputs) if isinstance(outputs, Tensor) else 0
    return Layout(opaque, 1 - unknown / entries, entries, activations, returned)


def _stays(tangent: Tensor, examples: int) -> bool:
    return len(tangent) == examples and not bool(tangent[1:].any())
