"""Along which directions the tangents of a batch are swept, and which layers they are for."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil.messages import LayerUse, LinearUse

from ._contractions import Energy, Pair, energy
from ._sweeps import TangentGraph, Tangents, off, per_example

SPLIT_ABOVE = 0.02
"""The input gradient's direction is split off where P carries more than this of a layer."""
MATRICES_ABOVE = 0.1
"""Further directions are for the matrices where these have more than this of the mass."""
FORWARD = 5
"""Directions for the inputs of matrices alone."""


@dataclass
class Swept:
    """Tangents along random directions; along the input gradient's, if that was split off."""

    energies: list[Energy]
    """Of the layers, before anything was split off."""
    probes: list[Tangents]
    """Random directions, for all layers."""
    along: Tangents | None = None
    """The input gradient's direction q."""
    for_matrices: list[Tangents] = field(default_factory=list)
    """Random directions for all but weights with positions, whose products are expensive."""
    inputs: list[dict[int, Tensor]] = field(default_factory=list)
    """a' of matrices along random directions without q."""

    def pairs(self, index: int) -> tuple[list[Pair], list[Pair]]:
        """(a', δ') of one layer without q: for all layers, and for all but such weights."""
        first, further = (
            [tangents.pair(index, self.along) for tangents in group]
            for group in (self.probes, self.for_matrices)
        )
        return first, further

    def inputs_of(self, index: int) -> list[Tensor]:
        """Further a' of one layer."""
        return [by_layer[index] for by_layer in self.inputs if index in by_layer]


def sweep_all(graph: TangentGraph, probes: int, split: bool, generator: torch.Generator) -> Swept:
    """All tangents of a batch.

    Where P matters in some layer, q is split off and there is more to measure. What is worth most
    depends on the layers. In a matrix a product costs nothing, so further directions serve those
    first, unless they count for little. There either signals need them, from a whole sweep, or
    only inputs, from forward halves.
    """
    q = _unit(graph.input_gradient.detach())
    first = [_probe(graph, q, generator) for _ in range(probes)]
    energies = [energy(use, first[0].pair(i)) for i, use in enumerate(graph.uses)]
    swept = Swept(energies, first)
    if not split or max((e.signal_part for e in energies), default=0.0) <= SPLIT_ABOVE:
        return swept
    swept.along = graph.sweep(q, torch.ones_like(first[0].overlap))
    matrices = [i for i, use in enumerate(graph.uses) if is_matrix(use)]
    open_inputs = [i for i in matrices if not reads(graph.uses[i], graph.x)]
    by_inputs = sum(energies[i].mass * (1 - energies[i].signal_part) for i in open_inputs)
    by_signals = sum(energies[i].mass * energies[i].signal_part for i in matrices)
    if by_inputs + by_signals <= MATRICES_ABOVE * sum(e.mass for e in energies):
        swept.probes.append(_probe(graph, q, generator))
    elif by_inputs < by_signals:
        swept.for_matrices.append(_probe(graph, q, generator))
    else:
        for _ in range(FORWARD):
            swept.inputs.append(_inputs_off(graph, q, swept.along, open_inputs, generator))
    return swept


def is_matrix(use: LayerUse) -> bool:
    """Whether the weight meets each example once."""
    return isinstance(use, LinearUse) and not use.has_positions


def reads(use: LayerUse, x: Tensor) -> bool:
    """Whether the layer's input is x itself, perhaps in another shape."""
    return use.a.numel() == x.numel() and use.a.data_ptr() == x.data_ptr()


def _probe(graph: TangentGraph, q: Tensor, generator: torch.Generator) -> Tangents:
    z = normal_like(q, generator)
    return graph.sweep(z, _overlap(z, q))


def _inputs_off(
    graph: TangentGraph, q: Tensor, along: Tangents, layers: list[int], generator: torch.Generator
) -> dict[int, Tensor]:
    z = normal_like(q, generator)
    overlap, moved = _overlap(z, q), graph.sweep_inputs(z, layers)
    return {index: off(a, along.inputs[index], overlap) for index, a in moved.items()}


def _overlap(z: Tensor, q: Tensor) -> Tensor:
    return (z * q).flatten(1).sum(1)


def _unit(gradient: Tensor) -> Tensor:
    """Divided by its largest entry first: the square of a tiny one is 0."""
    least = torch.finfo(gradient.dtype).tiny
    largest = gradient.flatten(1).abs().amax(1).clamp_min(least)
    scaled = gradient / per_example(largest, gradient)
    return scaled / per_example(scaled.flatten(1).norm(dim=1).clamp_min(least), scaled)
