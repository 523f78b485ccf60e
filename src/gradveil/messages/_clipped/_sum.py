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
from ._norms import ROOM, clipped_gradients, layer_squares
from ._separable import check_outputs, mode_of

_OPAQUE: WeakKeyDictionary[nn.Module, dict[Any, frozenset[str]]] = WeakKeyDictionary()
"""Parameters of layers whose first axis is not the examples', for each shape and mode."""


def clipped_sum(message: GradientMessage, inputs: Tensor, metric: Metric, clip: float) -> Tensors:
    """Σ_b g_b min(1, C / ‖g_b‖_Σ), with g_b the gradient of the loss of example b alone.

    One forward pass records what enters each layer, one backward pass the signals that come back.
    Norms and the clipped sum both come from these, so no weight gradient is computed twice.
    Parameters outside of known layers get the gradient of each example, some at a time, for the
    norm, and a second backward pass for the sum.
    """
    own = {name: p.detach().requires_grad_() for name, p in message.parameters.items()}
    run = _recorded(message, own, inputs, _opaque(message, inputs))
    outputs: Tensor = run.result
    check_outputs(outputs, len(inputs))
    delta, losses = example_losses(message.loss, outputs.detach(), message.targets)
    check_losses(message.loss, outputs.detach(), message.targets, losses)
    if not outputs.requires_grad:
        return zeros(own)
    others = {name: own[name] for name in own if name in run.others}
    _set_signals(run.uses, outputs, delta, keep=bool(others))
    layers = [layer_squares(use, metric) for use in run.uses]
    squares = added((square for square, _ in layers), delta, len(inputs))
    if others:
        squares = squares + _other_squares(message, inputs, delta, set(others), metric)
    factors = _factors(metric, squares, clip).to(delta.dtype)
    found = dict(_other_gradients(others, outputs, delta, factors))
    for use, (_, products) in zip(run.uses, layers, strict=True):
        found.update(clipped_gradients(use, factors, products))
    return {n: found[n] if n in found else torch.zeros_like(p) for n, p in own.items()}


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
    """Σ_i g_bi² / r_i over these parameters, from the gradients of some examples at a time."""
    parameters = message.parameters
    entries = sum(parameters[name].numel() for name in names)
    size = max(1, ROOM // max(1, entries))

    def one(example: Tensor, signal: Tensor) -> Tensors:
        return message.example_gradient(example, signal, names)

    rows = []
    for part in zip(inputs.detach().split(size), delta.split(size), strict=True):
        gradients = each_example(one, *part)
        rows.append(
            added((metric.squares(n, g) for n, g in gradients.items()), delta, len(part[0]))
        )
    return torch.cat(rows)


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

    The first two examples are looked at. A signal that starts at the outputs of one of them must
    not reach the other's place in any layer; in sequence-first models, for example, it does.
    """
    if len(inputs) < 2:
        return frozenset()
    model = message.loss.model
    known = _OPAQUE.setdefault(model, {})
    key = (inputs.shape[1:], mode_of(model), tuple(message.parameters))
    if key not in known:
        known[key] = _find_opaque(message, inputs[:2])
    return known[key]


def _find_opaque(message: GradientMessage, pair: Tensor) -> frozenset[str]:
    own = {name: p.detach().requires_grad_() for name, p in message.parameters.items()}
    run = _recorded(message, own, pair, frozenset())
    outputs, found = run.result, set(run.others)
    if not isinstance(outputs, Tensor) or not outputs.requires_grad:
        return frozenset(found)
    for place in range(len(pair)):
        start = torch.zeros_like(outputs)
        start[place] = (
            torch.linspace(0.5, 1.5, start[place].numel()).to(start).view_as(start[place])
        )
        _set_signals(run.uses, outputs, start, keep=True)
        found |= {n for use in run.uses if bool(use.signal[1 - place].any()) for n in use.names}
    return frozenset(found)
