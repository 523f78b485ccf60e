"""Sensitivities at the price of a few gradients, from tangents of layers.

For example b, position p and direction v, a weight's gradient moves by
G'_b = Σ_p δ'_bp a_bpᵀ + δ_bp a'_bpᵀ = P_b + Q_b, and s² = E_v Σ_b (P_b + Q_b)².
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gradveil._checks import WrongValue, check_count, check_flag
from gradveil._random import normal_like
from gradveil._tensors import Tensors
from gradveil.messages import (
    GradientMessage,
    LayerUse,
    LinearUse,
    Message,
    Recorder,
    ScaleUse,
    check_match,
    separates,
    settled,
)

from ._moments import Measurement, estimator_name

TINY = 1e-38


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
    `positions_squares`): use `Exact`, `Sketch` or `PerExample` where unbiased numbers are needed.
    Parameters outside known layers get a derivative along the probe of all examples that are
    measured at a time, denoised likewise.

    Args:
        probes: Random directions for each example. More are taken where signals matter: there a few
            examples dominate, and the batch averages little (`sweep_all`).
        split: Whether to split off the direction that matters, and to take those further ones.
            Without, it costs `probes` sweeps always, which suits what is averaged over steps or
            tensors.
    """

    probes: int = 1
    split: bool = True

    def __post_init__(self) -> None:
        check_count(self.probes, "probes")
        check_flag(self.split, "split")

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure a gradient message at these inputs."""
        if not isinstance(message, GradientMessage) or not separates(message, inputs):
            expected = "be a gradient that is a sum over examples for the estimator `Structured`"
            found, advice = type(message).__name__, "Use estimator='auto'."
            raise WrongValue("message", expected, found, advice)
        return self.measure(message, inputs, generator)

    def measure(
        self,
        message: GradientMessage,
        inputs: Tensor,
        generator: torch.Generator,
        *,
        with_values: bool = True,
        examples: bool = False,
    ) -> Measurement:
        """Measure a gradient that is known to be a sum over examples, some of them at a time.

        Args:
            with_values: Whether the message itself is taken; else it is left 0.
            examples: Whether to take the squares of single examples' gradients on the way, where
                all parameters lie in known layers.
        """
        layout = layout_of(message, inputs)
        at_a_time = layout.examples_at_a_time(self.probes + 2 if self.split else self.probes)
        values, squares, alone = Tensors(), Tensors(), Tensors()
        for part, own in message.parts(inputs, at_a_time):
            graph = TangentGraph(part, own, layout.opaque)
            if with_values:
                _add(values, graph.gradients())
            _add(squares, self._squares(graph, generator))
            if examples and not graph.others:
                _add(alone, _example_squares(graph))
            del graph  # before the next one is made
        used = message.parameters
        return Measurement(
            _complete(values, used),
            _complete(squares, used),
            estimator_name(self),
            _complete(alone, used) if alone else None,
        )

    def _squares(
        self, graph: "TangentGraph", generator: torch.Generator
    ) -> Iterator[tuple[str, Tensor]]:
        swept = sweep_all(graph, self.probes, self.split, generator)
        for index, use in enumerate(graph.uses):
            yield from _layer_squares(graph, swept, index, use)
        for name in graph.others:  # outside known layers: probes of all examples at a time
            tangents = [probe.others[name] for probe in (*swept.probes, *swept.for_matrices)]
            raw = _mean_square(tangents)  # its rows and columns are told apart
            flat = raw if raw.dim() < 2 else raw.flatten(1)
            yield name, smooth(flat, len(tangents)).view_as(raw)


def _add(totals: Tensors, parts: Iterator[tuple[str, Tensor]]) -> None:
    for name, tensor in parts:
        totals[name] = totals[name] + tensor if name in totals else tensor


def _complete(totals: Tensors, parameters: Tensors) -> Tensors:
    """In the order of the parameters, with 0 for those that are not used."""
    return {n: totals[n] if n in totals else torch.zeros_like(p) for n, p in parameters.items()}


def _example_squares(graph: "TangentGraph") -> Iterator[tuple[str, Tensor]]:
    """Σ_b c_b² of each parameter, in float64: squares of small numbers."""
    for use in graph.uses:
        signal, a = use.signal, use.a.detach()
        if use.bias is not None:
            yield use.bias, use.sums(signal).double().square_().sum(0)
        if not use.has_positions:
            yield use.weight, signal.double().square_().T @ a.double().square_()
            continue
        for chunk in chunks(use):
            yield use.weight, use.products(signal[chunk], a[chunk]).double().square_().sum(0)


def _layer_squares(
    graph: "TangentGraph", swept: "Swept", index: int, use: LayerUse
) -> Iterator[tuple[str, Tensor]]:
    """s² of one layer's weight and bias."""
    rest = [tangents.pair(index, swept.along) for tangents in swept.probes]
    further = rest + [tangents.pair(index, swept.along) for tangents in swept.for_matrices]
    along = None if swept.along is None else swept.along.pair(index)
    if use.bias is not None:
        yield use.bias, vector_squares(lambda pair: use.sums(pair[1]), further, along)
    if isinstance(use, ScaleUse):
        yield use.weight, vector_squares(lambda p: _moved(use, p, slice(None)), further, along)
    elif isinstance(use, LinearUse) and not use.has_positions:
        inputs = [by_layer[index] for by_layer in swept.inputs if index in by_layer]
        yield use.weight, matrix_squares(use, further, along, reads(use, graph.x), inputs)
    else:
        part = swept.energies[index] if along is None else energy(use, rest[0])
        with_signal = part.signal_part > 0.3  # else P is probed along q alone
        yield use.weight, positions_squares(use, rest, along, with_signal)


@dataclass(frozen=True)
class Tangents:
    """Derivatives along one direction v of the inputs, layer by layer."""

    inputs: list[Tensor]
    """a', of the layers' inputs."""
    signals: list[Tensor]
    """δ', of the layers' signals."""
    others: Tensors
    """∂_v g of the parameters outside known layers."""
    overlap: Tensor
    """⟨v_b, q_b⟩ for each example."""

    def pair(self, index: int, along: "Tangents | None" = None) -> "Pair":
        """(a', δ') of one layer; given the tangents along q, those along v - q ⟨v, q⟩."""
        pair = self.inputs[index], self.signals[index]
        if along is None:
            return pair
        a_along, signal_along = along.pair(index)
        return off(pair[0], a_along, self.overlap), off(pair[1], signal_along, self.overlap)


class TangentGraph:
    """The gradient of a message, and the graph from which tangents are swept.

    Let dx = ∂L/∂x be computed with its graph. For a direction v of the inputs, ONE backward pass
    through that graph, started with v at dx, yields for every layer

        ∂⟨dx, v⟩ / ∂(∂L/∂a) = a'     the tangent of its input along v (a forward sweep), and
        ∂⟨dx, v⟩ / ∂h       = δ'     the tangent of its signal, Hessians being symmetric
                                     (a backward sweep).

    The ordinary autograd engine so does what forward-over-reverse does: the primal values are
    shared by all directions, and no weight gradients are computed. Parameters outside known layers,
    and those used more than once, are leaves of the same graph: ∂⟨dx, v⟩/∂Θ = ∂_v g.
    """

    def __init__(
        self, message: GradientMessage, inputs: Tensor, opaque: frozenset[str] = frozenset()
    ) -> None:
        check_match(inputs, message.targets)
        parameters = {n: p.detach().requires_grad_() for n, p in message.parameters.items()}
        self.x = inputs.detach().clone().requires_grad_()
        recorder, loss = settled(
            lambda more, copies: Recorder(parameters, opaque | more, copies, len(inputs)),
            lambda: message.loss(parameters, self.x, message.targets),
        )
        self.uses = recorder.uses
        self.others = {n: p for n, p in parameters.items() if n in recorder.others}
        uses, n = self.uses, len(self.uses)
        wanted = [self.x, *[use.a for use in uses], *[use.h for use in uses], *self.others.values()]
        self.input_gradient, *gradients = torch.autograd.grad(
            loss, wanted, create_graph=True, allow_unused=True, materialize_grads=True
        )
        self.q = _unit(self.input_gradient.detach())
        for use, input_signal, signal in zip(uses, gradients, gradients[n:], strict=False):
            use.input_signal, use.signal = input_signal, signal.detach()
        rest = (gradient.detach() for gradient in gradients[2 * n :])
        self._others_gradient = dict(zip(self.others, rest, strict=True))

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The gradient of each parameter that is used, made when it is asked for."""
        yield from self._others_gradient.items()
        for use in self.uses:
            yield from use.gradient().items()

    def overlap(self, direction: Tensor) -> Tensor:
        """⟨v_b, q_b⟩ of each example, with the direction q_b of its input gradient."""
        return (direction * self.q).flatten(1).sum(1)

    def sweep(self, direction: Tensor) -> Tangents:
        """Tangents of every layer along the direction."""
        wanted = [use.input_signal for use in self.uses]
        wanted += [use.h for use in self.uses] + list(self.others.values())
        tangents, n = self.along(wanted, direction), len(self.uses)
        others = dict(zip(self.others, tangents[2 * n :], strict=True))
        return Tangents(tangents[:n], tangents[n : 2 * n], others, self.overlap(direction))

    def along(self, wanted: list[Tensor], direction: Tensor) -> list[Tensor]:
        """∂⟨dx, v⟩ / ∂(each wanted tensor); of `input_signal` alone it has half a sweep's price."""
        if not self.input_gradient.requires_grad:  # it is constant: so is the whole message
            return [torch.zeros_like(tensor) for tensor in wanted]
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        return [*torch.autograd.grad(self.input_gradient, wanted, direction, **options)]


@dataclass
class Swept:
    """Tangents along random directions; along the input gradient's, if that was split off."""

    energies: list["Energy"]
    """Of the layers, before anything was split off."""
    probes: list[Tangents]
    """Random directions, for all layers."""
    along: Tangents | None = None
    """The input gradient's direction q."""
    for_matrices: list[Tangents] = field(default_factory=list)
    """Random directions for all but weights with positions, whose products are expensive."""
    inputs: list[dict[int, Tensor]] = field(default_factory=list)
    """a' of matrices along random directions without q."""


def sweep_all(graph: TangentGraph, probes: int, split: bool, generator: torch.Generator) -> Swept:
    """All tangents of a batch.

    Where P carries more than 2 % of some layer, q is split off and there is more to measure. What
    is worth most depends on the layers. In a matrix a product costs nothing, so further directions
    serve those first, unless they have less than a tenth of the mass. There either signals need
    them, from a whole sweep, or only inputs, from forward halves.
    """
    q = graph.q
    first = [graph.sweep(normal_like(q, generator)) for _ in range(probes)]
    energies = [energy(use, first[0].pair(i)) for i, use in enumerate(graph.uses)]
    swept = Swept(energies, first)
    if not split or max((e.signal_part for e in energies), default=0.0) <= 0.02:
        return swept
    swept.along = graph.sweep(q)
    matrices = [i for i, use in enumerate(graph.uses) if not use.has_positions]
    open_inputs = [i for i in matrices if not reads(graph.uses[i], graph.x)]
    by_inputs = sum(energies[i].mass * (1 - energies[i].signal_part) for i in open_inputs)
    by_signals = sum(energies[i].mass * energies[i].signal_part for i in matrices)
    if by_inputs + by_signals <= 0.1 * sum(e.mass for e in energies):
        swept.probes.append(graph.sweep(normal_like(q, generator)))
    elif by_inputs < by_signals:
        swept.for_matrices.append(graph.sweep(normal_like(q, generator)))
    else:
        for _ in range(5):
            z = normal_like(q, generator)
            moved = graph.along([graph.uses[i].input_signal for i in open_inputs], z)
            pairs = zip(open_inputs, moved, strict=True)
            overlap, along = graph.overlap(z), swept.along.inputs
            swept.inputs.append({i: off(a, along[i], overlap) for i, a in pairs})
    return swept


def reads(use: LayerUse, x: Tensor) -> bool:
    """Whether the layer's input is x itself, perhaps in another shape."""
    return use.a.numel() == x.numel() and use.a.data_ptr() == x.data_ptr()


def off(moved: Tensor, along: Tensor, overlap: Tensor) -> Tensor:
    """A tangent along v - q ⟨v, q⟩, given those along v and q, and ⟨v, q⟩ of each example."""
    return moved - along * _per_example(overlap, along)


def _per_example(numbers: Tensor, like: Tensor) -> Tensor:
    """One number for each example, in a shape that multiplies `like`."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


def _unit(gradient: Tensor) -> Tensor:
    """Divided by its largest entry first: the square of a tiny one is 0."""
    least = torch.finfo(gradient.dtype).tiny
    largest = gradient.flatten(1).abs().amax(1).clamp_min(least)
    scaled = gradient / _per_example(largest, gradient)
    return scaled / _per_example(scaled.flatten(1).norm(dim=1).clamp_min(least), scaled)


ROOM = 2**26
"""How many numbers a graph and its tangents may take, where the parameters take less than half."""


@dataclass(frozen=True)
class Layout:
    """Where a model's parameters are used: what must be known of it, found once."""

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

        Every part of a batch computes the loss of all outputs, so outputs that are no small part
        of the activations are not cut.
        """
        if 20 * self.outputs > self.activations:
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
    tangents = graph.sweep(direction)
    pairs = zip(graph.uses, tangents.inputs, tangents.signals, strict=True)
    mixing = [
        use for use, *pair in pairs if any(len(t) != len(inputs) or bool(t[1:].any()) for t in pair)
    ]
    opaque = frozenset([*(name for use in mixing for name in use.names), *graph.others])
    sizes = {name: parameter.numel() for name, parameter in message.parameters.items()}
    entries, unknown = sum(sizes.values()), sum(sizes[name] for name in opaque)
    activations = sum(use.a.numel() + use.h.numel() for use in graph.uses) // len(inputs)
    with torch.no_grad():
        outputs = message.loss.outputs(message.parameters, inputs)
    returned = outputs.numel() // len(inputs) if isinstance(outputs, Tensor) else 0
    return Layout(opaque, 1 - unknown / entries, entries, activations, returned)


CHUNK = 2**23
"""How many numbers of per-example weight tangents are held at a time."""

Pair = tuple[Tensor, Tensor]
"""(a', δ') of one layer along one direction."""


class Energy(NamedTuple):
    """What a layer's norms say before any product is formed."""

    signal_part: float
    """Roughly what part of the squares comes from P."""
    mass: float
    """Roughly Σ s |g|, what the layer counts in the optimum."""


def energy(use: LayerUse, tangent: Pair) -> Energy:
    """From limits: Σ P² ≤ ‖δ'‖² ‖a‖², Σ Q² ≤ ‖δ‖² ‖a'‖², Σ g² ≤ ‖δ‖² ‖a‖².

    0 for the scale of a normalising layer, which is small.
    """
    if isinstance(use, ScaleUse):
        return Energy(0.0, 0.0)
    tensors = (*tangent, use.a.detach(), use.signal)
    a_moved, signal_moved, a, signal = (t.flatten(1).norm(dim=1).double() for t in tensors)
    products = (signal_moved * a, signal * a_moved, signal * a)
    by_signal, by_inputs, gradient = torch.stack(products).square().sum(1).tolist()
    squares = by_signal + by_inputs
    return Energy(by_signal / max(squares, TINY), math.sqrt(squares * gradient))


def matrix_squares(
    use: LinearUse,
    rest: list[Pair],
    along: Pair | None,
    is_input: bool,
    more_inputs: Sequence[Tensor] = (),
) -> Tensor:
    """s² of a matrix that meets each example once, without a matrix for each example.

    Σ_b (δ'_bi a_bj + δ_bi a'_bj)² contracts to products of (examples, out) and (examples, in).
    Along q, all three of them. In the rest of the space, P² + Q²: there E[2PQ] is small and its
    noise is not. E a'² is denoised, and known where the layer reads the inputs themselves.

    Args:
        rest: Tangents along random directions, with q split off if `along` is given.
        along: Tangents along the input gradient's direction q.
        is_input: Whether a is x, so that ‖∇a‖² = 1.
        more_inputs: a' along further random directions.
    """
    a, signal = use.a.detach(), use.signal
    if is_input:
        a_squares = torch.ones_like(a) if along is None else 1 - along[0].square()
    else:
        moved = [*(pair[0] for pair in rest), *more_inputs]
        a_squares = _smooth_inputs(use, _mean_square(moved), len(moved))
    signal_squares = _mean_square([pair[1] for pair in rest])
    squares = (signal.square().T @ a_squares).addmm_(signal_squares.T, a.square())
    if along is not None:
        a_along, signal_along = along
        squares.addmm_(signal_along.square().T, a.square())
        squares.addmm_((signal_along * signal).T, a_along * a, alpha=2)
        squares.addmm_(signal.square().T, a_along.square())
    return squares.clamp_min_(0)


def positions_squares(
    use: LayerUse, rest: list[Pair], along: Pair | None, with_signal: bool
) -> Tensor:
    """s² of a weight that meets each example at many positions, some examples at a time.

    The squares along the random directions are denoised, those along q are exact. Where P is small
    off q (`with_signal` False), (P + Q)² is replaced by Q² off q and P² along q: half the work.
    """
    total = torch.zeros(use.shape, dtype=use.signal.dtype, device=use.signal.device)
    exact, fourth = torch.zeros_like(total), total.new_zeros(())
    for chunk in chunks(use):
        for pair in rest:
            squares = _moved(use, pair, chunk, with_signal).square_().flatten(1)
            total += squares.sum(0).view_as(total)
            fourth += squares.flatten().dot(squares.flatten())
        if along is not None:
            exact += _moved(use, along, chunk, with_inputs=with_signal).square_().sum(0)
    form = (*total.shape[:2], -1) if total.dim() > 1 else tuple(total.shape)
    smoothed = smooth_sum(total.view(form), fourth).view_as(total)
    return smoothed.div_(len(rest)).add_(exact)


def vector_squares(move: Callable[[Pair], Tensor], rest: list[Pair], along: Pair | None) -> Tensor:
    """s² of a small parameter from its per-example derivatives, (examples, *shape)."""
    squares = torch.cat([move(pair) for pair in rest]).square_()
    smoothed = smooth_sum(squares.sum(0), squares.square().sum()) / len(rest)
    return smoothed if along is None else smoothed + move(along).square().sum(0)


def _moved(
    use: LayerUse, pair: Pair, chunk: slice, with_signal: bool = True, with_inputs: bool = True
) -> Tensor:
    """P + Q of some examples, or one of them alone."""
    parts = []
    if with_inputs:
        parts.append(use.products(use.signal[chunk], pair[0][chunk]))
    if with_signal:
        parts.append(use.products(pair[1][chunk], use.a.detach()[chunk]))
    return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])


def chunks(use: LayerUse) -> Iterator[slice]:
    """Of so many examples that a matrix for each can be held."""
    size = max(1, CHUNK // max(1, use.shape.numel()))
    for start in range(0, len(use.signal), size):
        yield slice(start, start + size)


def _mean_square(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).square().mean(0)


def _smooth_inputs(use: LinearUse, squares: Tensor, probes: int) -> Tensor:
    """Denoise the mean of a'² over probes: χ² with `probes` degrees around ‖∇a‖².

    The start has two levels, for entries above 0 and not: what a ReLU or LeakyReLU lets through.
    Flattened feature maps are told apart by channel and position.
    """
    active = use.a.detach() > 0
    count = active.sum()
    high = (squares * active).sum() / count.clamp_min(1)
    low = (squares * ~active).sum() / (active.numel() - count).clamp_min(1)
    form = (len(squares), use.channels or squares.shape[1], -1)
    start = torch.where(active, high, low).view(form)
    return smooth(squares.view(form), probes, start, entries=probes > 1).reshape(squares.shape)


def smooth(
    raw: Tensor, freedom: float, start: Tensor | None = None, entries: bool = False
) -> Tensor:
    """Denoise squares that are truth × χ²_k / k, k = `freedom`, from `start` or their mean.

    A squared derivative along a Gaussian probe is truth × χ²₁. Groups of entries (main effects of
    every axis, then columns over the first axis, then single entries) move away from one level for
    all only as far as their scatter exceeds what such noise explains: empirical Bayes, one factor
    after the other. With many degrees of freedom the result is the raw estimate, with few it is a
    product of row, column and position effects; single entries of a matrix are heard from 16
    degrees on, if not asked for.
    """
    model = raw.mean().expand_as(raw) if start is None else start
    axes = range(raw.dim())
    groups = [tuple(j for j in axes if j != i) for i in axes if raw.dim() > 1 and raw.shape[i] > 1]
    if raw.dim() > 2 and raw.shape[0] > 1:
        groups.append((0,))
    if entries or freedom >= 16 or raw.dim() < 2:
        groups.append(())
    for group in groups:
        model = _refine(raw, model, group, freedom)
    return model


def smooth_sum(squares: Tensor, fourth: Tensor) -> Tensor:
    """Denoise a sum of squared derivatives over examples, given the sum of their fourth powers.

    For Gaussian derivatives E g⁴ = 3 (E g²)², so that Var Σ g² = ⅔ E Σ g⁴: the sum has
    2 truth² / Var = 3 truth² / Σ g⁴ degrees of freedom, here the mean over all entries.
    """
    freedom = float(3 * squares.square().sum() / fourth.clamp_min(TINY)) - 2
    return smooth(squares, max(1.0, freedom))


def _refine(raw: Tensor, model: Tensor, group: tuple[int, ...], freedom: float) -> Tensor:
    """Multiply the model by one factor per group, as far as the raw squares prove it.

    The ratio r = Σ raw / Σ model of a group has the noise variance n = 2/k · Σ model² / (Σ model)²
    and scatters by τ² around 1 from group to group; the factor is 1 + (r - 1) τ² / (τ² + n), with
    τ² from E (r - 1)² = τ² + n (1 + τ²).
    """
    if group:
        observed, expected = raw.sum(group, keepdim=True), model.sum(group, keepdim=True)
        noise = model.square().sum(group, keepdim=True) / expected.square().clamp_min(TINY)
        noise = noise * (2 / freedom)
    else:
        observed, expected = raw, model
        noise = raw.new_tensor(2 / freedom)
    excess = (observed / expected.clamp_min(TINY)).sub_(1)
    weight = expected / expected.sum().clamp_min(TINY)
    mean_noise = (noise * weight).sum() if group else noise
    scatter = ((excess.square() * weight).sum() - mean_noise).clamp_min(0) / (1 + mean_noise)
    return model * excess.mul_(scatter / (scatter + noise).clamp_min(TINY)).add_(1)
