"""Sensitivities at the price of a few gradients, from tangents of layers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._checks import check_count, check_flag
from gradveil._typing import Tensors
from gradveil.messages import (
    GradientMessage,
    LayerUse,
    LinearUse,
    Message,
    ScaleUse,
    separates,
)

from .._estimator import Measurement, estimator_name
from .._shrinkage import smooth_matrix
from ._contractions import Pair, chunks, energy, matrix_squares, positions_squares, vector_squares
from ._directions import Swept, is_matrix, reads, sweep_all
from ._layout import layout_of
from ._sweeps import TangentGraph

SIGNAL_ABOVE = 0.3
"""P is probed off the input gradient's direction where it carries more of a layer's squares."""


@dataclass(frozen=True)
class Structured:
    """Squared sensitivities from the tangents of each layer's input and signal.

    Two ideas beside the cheap tangents of `TangentGraph`:

    - **The direction that matters.** For a loss like cross-entropy the signals of a badly fitted
      example move mostly along one direction of its inputs, that of its input gradient, q. Where
      signals matter it is split off: s² = (∂_q g)² + E_z (∂_{z - q⟨q,z⟩} g)², and the first term
      is exact. So the few examples that dominate a trained model's gradient are measured, not
      sampled.
    - **Shrinkage.** What is left to chance is denoised by `smooth`: rows, columns, positions and
      entries differ only as far as the data prove it.

    The estimate is biased where it shrinks or leaves out a cross term (`matrix_squares`,
    `positions_squares`); the price in the share of the optimum is what `benchmarks.sensitivity`
    shows. Use `Exact`, `Sketch` or `PerExample` where unbiased numbers are needed. Parameters
    outside known layers get a derivative along the probe of all examples that are measured at a
    time, denoised likewise.

    Args:
        probes: Random directions for each example. More are taken where signals matter: there a few
            examples dominate, and the batch averages little (`sweep_all`).
        split: Whether to split off the direction that matters, and to take those further ones.
            Without, it costs `probes` sweeps always, which suits what is averaged over steps or
            tensors.
        examples: Whether to take the squares of single examples' gradients on the way
            (`Measurement.example_squares`), where all parameters lie in known layers.
        at_a_time: The most examples whose tangents are held at once. As many as take no more memory
            than 2²⁶ numbers, or twice the parameters if that is more, if `None`.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage, measure
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> sorted(measure(message, torch.ones(2, 3), Structured()).squared_sensitivities)
    ['layers.1.bias', 'layers.1.weight', 'layers.3.bias', 'layers.3.weight']
    """

    probes: int = 1
    split: bool = True
    at_a_time: int | None = None
    examples: bool = False

    def __post_init__(self) -> None:
        check_count(self.probes, "probes")
        check_flag(self.split, "split")
        check_flag(self.examples, "examples")
        if self.at_a_time is not None:
            check_count(self.at_a_time, "at_a_time")

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure a gradient message at these inputs."""
        if not isinstance(message, GradientMessage) or not separates(message, inputs):
            raise ValueError(
                "Parameter `message` should be a gradient that is a sum over examples for the"
                f" estimator `Structured`. Found {type(message).__name__}. Use estimator='auto'."
            )
        return self.measure(message, inputs, generator)

    def measure(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure a gradient that is known to be a sum over examples."""
        return self._measure(message, inputs, generator, with_values=True)

    def measure_squares(
        self, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Measurement:
        """The same without the values, which are left 0."""
        return self._measure(message, inputs, generator, with_values=False)

    def _measure(
        self, message: Message, inputs: Tensor, generator: torch.Generator, with_values: bool
    ) -> Measurement:
        """Some examples at a time, so that their tangents take little memory."""
        assert isinstance(message, GradientMessage)
        layout = layout_of(message, inputs)
        sweeps = self.probes + 2 if self.split else self.probes
        at_a_time = self.at_a_time or layout.examples_at_a_time(sweeps)
        values: Tensors = {}
        squares: Tensors = {}
        alone: Tensors = {}
        for part, own in message.parts(inputs, at_a_time):
            graph = TangentGraph(part, own, layout.opaque)
            if with_values:
                _add(values, graph.gradients())
            _add(squares, self._squares(graph, generator))
            if self.examples and not graph.others:
                _add(alone, _example_squares(graph))
            del graph  # before the next one is made
        used = message.parameters
        measured = Measurement(_complete(values, used), _complete(squares, used), None)
        measured.example_squares = _complete(alone, used) if alone else None
        return measured.by(estimator_name(replace(self, examples=False)))

    def _squares(
        self, graph: TangentGraph, generator: torch.Generator
    ) -> Iterator[tuple[str, Tensor]]:
        swept = sweep_all(graph, self.probes, self.split, generator)
        for index, use in enumerate(graph.uses):
            yield from _layer_squares(graph, swept, index, use)
        for name in graph.others:
            tangents = [probe.others[name] for probe in (*swept.probes, *swept.for_matrices)]
            yield name, _other_squares(tangents)


def _add(totals: Tensors, parts: Iterator[tuple[str, Tensor]]) -> None:
    for name, tensor in parts:
        totals[name] = totals[name] + tensor if name in totals else tensor


def _example_squares(graph: TangentGraph) -> Iterator[tuple[str, Tensor]]:
    """Σ_b c_b² of each parameter, in float64: squares of small numbers."""
    for use in graph.uses:
        signal, a = use.signal, use.a.detach()
        if use.bias is not None:
            yield use.bias, use.sums(signal).double().square_().sum(0)
        if is_matrix(use):
            yield use.weight, signal.double().square_().T @ a.double().square_()
            continue
        for chunk in chunks(use):
            yield use.weight, use.products(signal[chunk], a[chunk]).double().square_().sum(0)


def _complete(totals: Tensors, parameters: Tensors) -> Tensors:
    """In the order of the parameters, with 0 for those that are not used."""
    return {n: totals[n] if n in totals else torch.zeros_like(p) for n, p in parameters.items()}


def _layer_squares(
    graph: TangentGraph, swept: Swept, index: int, use: LayerUse
) -> Iterator[tuple[str, Tensor]]:
    """s² of one layer's weight and bias."""
    rest, further = swept.pairs(index)
    along = None if swept.along is None else swept.along.pair(index)
    if use.bias is not None:
        yield use.bias, vector_squares(lambda pair: use.sums(pair[1]), rest + further, along)
    if isinstance(use, ScaleUse):
        scale = vector_squares(lambda pair: _scale_move(use, pair), rest + further, along)
        yield use.weight, scale
    elif isinstance(use, LinearUse) and is_matrix(use):
        inputs, is_input = swept.inputs_of(index), reads(use, graph.x)
        yield use.weight, matrix_squares(use, rest + further, along, is_input, inputs)
    else:
        part = swept.energies[index] if along is None else energy(use, rest[0])
        with_signal = part.signal_part > SIGNAL_ABOVE
        yield use.weight, positions_squares(use, rest, along, with_signal)


def _scale_move(use: ScaleUse, pair: Pair) -> Tensor:
    return use.products(use.signal, pair[0]) + use.products(pair[1], use.a.detach())


def _other_squares(tangents: list[Tensor]) -> Tensor:
    """s² of a parameter outside known layers, from probes of all examples at a time."""
    raw = torch.stack(tangents).square().mean(0)
    return smooth_matrix(raw, len(tangents))
