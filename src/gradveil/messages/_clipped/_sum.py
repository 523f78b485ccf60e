"""Clipped sums of per-example gradients, at little more than the price of a plain gradient."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import vmap

from gradveil._checks import NonFiniteError
from gradveil._memory import is_out_of_memory
from gradveil._typing import Tensors

from .._gradient import GradientMessage
from .._layers import LayerUse, Recording, record
from ._losses import check_losses, example_losses
from ._metric import Metric, added, zeros
from ._norms import ROOM, clipped_gradients, layer_squares, weighted_sum
from ._separable import check_outputs, mode_of

_OPAQUE: WeakKeyDictionary[nn.Module, dict[Any, frozenset[str]]] = WeakKeyDictionary()
"""Parameters of layers whose first axis is not the examples', for each shape and mode."""

FEW = 8
"""Examples by which such layers are found."""


def clipped_sum(
    message: GradientMessage, inputs: Tensor, metric: Metric, clip: float, *, wide: bool = False
) -> Tensors:
    """Σ_b g_b min(1, C / ‖g_b‖_Σ), with g_b the gradient of the loss of example b alone.

    One forward pass records what enters each layer, one backward pass the signals that come back.
    Norms and the clipped sum both come from these, so no weight gradient is computed twice.
    Parameters outside of known layers get the gradient of each example, some at a time, for the
    norm, and a second backward pass for the sum.

    With `wide` examples are added up in float64, whatever the model's dtype: n of them are then off
    by no more than n 2⁻⁵³ of the sum of their sizes, in any order.
    """
    own = {name: p.detach().requires_grad_() for name, p in message.parameters.items()}
    run = _recorded(message, own, inputs, _opaque(message, inputs))
    outputs: Tensor = run.result
    check_outputs(outputs, len(inputs))
    delta, losses = example_losses(message.loss, outputs.detach(), message.targets)
    check_losses(message.loss, outputs.detach(), message.targets, losses)
    dtype = torch.float64 if wide else None
    if not outputs.requires_grad:
        return zeros(own, dtype)
    others = {name: own[name] for name in own if name in run.others}
    _set_signals(run.uses, outputs, delta, keep=bool(others))
    layers = [layer_squares(use, metric) for use in run.uses]
    squares = added((square for square, _ in layers), delta, len(inputs))
    if others:
        squares = squares + _other_squares(message, inputs, delta, set(others), metric)
    factors = _factors(metric, squares, clip).to(dtype or delta.dtype)
    if wide and others:
        found = _other_sums(message, inputs, delta, set(others), factors)
    else:
        found = dict(_other_gradients(others, outputs, delta, factors))
    for use, (_, weight_sum) in zip(run.uses, layers, strict=True):
        found.update(clipped_gradients(use, factors, weight_sum))
    return zeros({name: p for name, p in own.items() if name not in found}, dtype) | found


def _recorded(
    message: GradientMessage, own: Tensors, inputs: Tensor, opaque: frozenset[str]
) -> Recording[Any]:
    x = inputs.detach()
    if x.is_floating_point():
        x.requires_grad_()  # what a layer takes must have a place in the graph
    return record(
        lambda: message.loss.outputs(own, x.view_as(x)), own, len(x), opaque, embeddings=True
    )


def _set_signals(uses: list[LayerUse], outputs: Tensor, delta: Tensor, keep: bool) -> None:
    """δ of each layer, where the outputs have the gradient `delta`."""
    if not uses:
        return
    signals = torch.autograd.grad(
        outputs,
        [use.h for use in uses],
        delta,
        retain_graph=keep,
        allow_unused=True,
        materialize_grads=True,
    )
    for use, signal in zip(uses, signals, strict=True):
        use.signal = signal


def _factors(metric: Metric, squares: Tensor, clip: float) -> Tensor:
    broken = ~squares.isfinite()
    if bool(broken.any()):
        raise NonFiniteError(
            "The gradient of each example should be finite, and so should its square. Found"
            f" {int(broken.sum())} of {len(squares)} examples where it is not. Nothing was sent;"
            " leave them out, or lower the learning rate."
        )
    return metric.factor(squares, clip)


def _other_gradients(
    others: Tensors, outputs: Tensor, delta: Tensor, factors: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Σ_b c_b g_b of parameters outside of known layers: one backward pass with c_b δ_b."""
    if others:
        weighted = delta * factors.view(-1, *[1] * (delta.dim() - 1))
        gradients = torch.autograd.grad(
            outputs, list(others.values()), weighted, allow_unused=True, materialize_grads=True
        )
        yield from zip(others, gradients, strict=True)


def _other_squares(
    message: GradientMessage, inputs: Tensor, delta: Tensor, names: set[str], metric: Metric
) -> Tensor:
    """Σ_i g_bi² / r_i over these parameters, for each example."""
    rows = [
        added((metric.squares(n, g) for n, g in gradients.items()), delta, examples)
        for gradients, examples in _other_parts(message, inputs, delta, names)
    ]
    return torch.cat(rows)


def _other_sums(
    message: GradientMessage, inputs: Tensor, delta: Tensor, names: set[str], factors: Tensor
) -> Tensors:
    """Σ_b c_b g_b of these parameters in the dtype of c, from the gradients of each example."""
    sums = zeros({name: message.parameters[name] for name in names}, factors.dtype)
    start = 0
    for gradients, examples in _other_parts(message, inputs, delta, names):
        part = factors[start : start + examples]
        for name, g in gradients.items():
            sums[name] += weighted_sum(part, g)
        start += examples
    return sums


def _other_parts(
    message: GradientMessage, inputs: Tensor, delta: Tensor, names: set[str]
) -> Iterator[tuple[Tensors, int]]:
    """The gradients of some examples at a time, and how many there are."""
    entries = sum(message.parameters[name].numel() for name in names)
    size = max(1, ROOM // max(1, entries))

    def one(example: Tensor, signal: Tensor) -> Tensors:
        return message.example_gradient(example, signal, names)

    for part in zip(inputs.detach().split(size), delta.split(size), strict=True):
        yield each_example(one, *part), len(part[0])


def each_example(one: Any, *rows: Tensor) -> Tensors:
    """`one(*row)` for each example, stacked; one by one where torch cannot batch it."""
    try:
        stacked: Tensors = vmap(one)(*rows)
        return stacked
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
    results = [one(*row) for row in zip(*rows, strict=True)]
    return {name: torch.stack([result[name] for result in results]) for name in results[0]}


def _opaque(message: GradientMessage, inputs: Tensor) -> frozenset[str]:
    """Parameters of layers that do not keep examples on their first axis.

    The first few examples are looked at. A signal that starts at the outputs of some of them must
    not reach the others' places in any layer; in sequence-first models, for example, it does.
    """
    if len(inputs) < 2:
        return frozenset()
    model, few = message.loss.model, inputs[:FEW]
    known = _OPAQUE.setdefault(model, {})
    key = (few.shape, mode_of(model), tuple(message.parameters))
    if key not in known:
        known[key] = _find_opaque(message, few)
    return known[key]


def _find_opaque(message: GradientMessage, few: Tensor) -> frozenset[str]:
    """Examples are told apart by the bits of their numbers: any two differ in one of them."""
    own = {name: p.detach().requires_grad_() for name, p in message.parameters.items()}
    run = _recorded(message, own, few, frozenset())
    outputs, found = run.result, set(run.others)
    if not isinstance(outputs, Tensor) or not outputs.requires_grad:
        return frozenset(found)
    numbers = torch.arange(len(few), device=few.device)
    for bit in range((len(few) - 1).bit_length()):
        for side in (0, 1):
            here = (numbers >> bit) % 2 == side
            start = torch.zeros_like(outputs)
            pattern = torch.linspace(0.5, 1.5, start[0].numel()).to(start)
            start[here] = pattern.view_as(start[0])
            _set_signals(run.uses, outputs, start, keep=True)
            found |= {n for use in run.uses if bool(use.signal[~here].any()) for n in use.names}
    return frozenset(found)
