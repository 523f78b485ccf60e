"""Squared norms of each example's gradient, layer by layer, from what enters and leaves a layer.

The gradient of a weight for example b is G_b = Σ_p δ_bp a_bpᵀ over positions p. Its norm needs no
G_b: ‖G_b‖² = ‖δ_b‖² ‖a_b‖² with one position, and Σ_pq ⟨δ_bp, δ_bq⟩ ⟨a_bp, a_bq⟩ with several.
In the norm of Σ, with r = rows × rest, δ is divided by √rows first and a by √rest.

Terms of G_b may cancel, so that it is far smaller than they are, and then most of it is rounding.
Norms hold all the same: where G_b is made, the numbers that are added up later are those whose norm
was taken; where it is not, both are computed in float64.
"""

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .._layers import ConvUse, EmbeddingUse, LayerUse, LinearUse, ScaleUse
from ._metric import Metric, Weights

ROOM = 2**23
"""How many numbers of examples × (a layer's weight) are held at a time, or kept for the sum."""

CHUNK = 2**18
"""How many numbers are made wider at a time."""

SLACK = 4
"""Units in the last place of float64 that are added to a squared norm for each term of a product,
relative to the sum of the products' sizes, so that rounding never makes it smaller than it is."""

Sum = Callable[[Tensor], Tensor]
"""From the factors c_b to Σ_b c_b G_b, in their dtype."""


def layer_squares(use: LayerUse, metric: Metric) -> tuple[Tensor, Sum]:
    """Σ_i g_bi² / r_i over a layer's weight and bias, for each example, in float64.

    Beside it what adds up the clipped gradients of the weight.
    """
    squares, weight_sum = _weight_squares(use, metric)
    if use.bias is not None:
        squares = squares + metric.squares(use.bias, use.sums(use.signal))
    return squares, weight_sum


def clipped_gradients(
    use: LayerUse, factors: Tensor, weight_sum: Sum
) -> Iterator[tuple[str, Tensor]]:
    """Σ_b c_b g_b of a layer's weight and bias, in the dtype of c."""
    yield use.weight, weight_sum(factors)
    if use.bias is not None:
        yield use.bias, weighted_sum(factors, use.sums(use.signal))


def weighted_sum(factors: Tensor, gradients: Tensor) -> Tensor:
    """Σ_b c_b g_b in the dtype of c, from the gradients of all examples."""
    rows = gradients.reshape(len(gradients), -1)
    if rows.dtype == factors.dtype:
        return (factors @ rows).view(gradients.shape[1:])
    size = max(1, CHUNK // max(1, rows.shape[1]))  # a copy of all rows would take long
    found = factors.new_zeros(rows.shape[1])
    for c, part in zip(factors.split(size), rows.split(size), strict=True):
        found.addmv_(part.to(c.dtype).T, c)
    return found.view(gradients.shape[1:])


def _weight_squares(use: LayerUse, metric: Metric) -> tuple[Tensor, Sum]:
    weights, at_once = metric.weights(use.weight), partial(_sum_at_once, use)
    if isinstance(use, EmbeddingUse):
        return _embedding(use, weights), at_once
    if isinstance(use, LinearUse) and not use.has_positions:
        return _outer(use.signal, use.a.detach(), weights), at_once
    if weights.entries is None and not isinstance(use, ScaleUse):
        factors = _linear_factors(use) if isinstance(use, LinearUse) else _conv_factors(use)
        if factors is not None:
            return _gram(*factors, weights), at_once
    return _by_products(use, metric)


def _sum_at_once(use: LayerUse, factors: Tensor) -> Tensor:
    """Σ_b c_b δ_b a_bᵀ in the dtype of c, without the gradient of any example."""
    scaled = copy(use)
    scaled.signal = use.signal * factors.view(-1, *[1] * (use.signal.dim() - 1))
    if use.a.is_floating_point():  # not the indices of an embedding
        scaled.a = use.a.detach().to(factors.dtype)
    return scaled.weight_gradient()


def _outer(signal: Tensor, a: Tensor, weights: Weights) -> Tensor:
    """‖δ/√rows‖² ‖a/√rest‖²; with an r for each entry Σ_ij δ_i² a_j² / r_ij."""
    (signal, s), (a, t) = _unit(signal), _unit(a)
    left, right = signal.square(), a.square()
    if weights.rows is not None:
        left = left * weights.rows.view(1, -1)
    if weights.rest is not None:
        right = right * weights.rest.reshape(1, -1)
    if weights.entries is not None:
        return ((left @ weights.entries.double()) * right).sum(1) * (s * t).square().squeeze(-1)
    return left.sum(1) * right.sum(1) * (s * t).square().squeeze(-1)


def _unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in float64, and how much larger they are: squares of float64 itself may vanish.

    That of a signal may where its product with what entered the layer does not.
    """
    size = rows.new_ones(*rows.shape[:-1], 1, dtype=torch.float64)
    if rows.dtype == torch.float64 and rows.shape[-1]:
        largest = rows.abs().amax(-1, keepdim=True)
        size = torch.where(largest > 0, largest, size)
        rows = rows / size
    return rows.double(), size


def _linear_factors(use: LinearUse) -> tuple[Tensor, Tensor] | None:
    """δ and a with the axes (examples, 1, positions, features); `None` where G_b is smaller."""
    signal, a = (t.detach().flatten(1, -2).unsqueeze(1) for t in (use.signal, use.a))
    return (signal, a) if signal.shape[2] ** 2 <= use.shape.numel() else None


def _conv_factors(use: LayerUse) -> tuple[Tensor, Tensor] | None:
    """δ and the patches of a, (examples, groups, positions, features); `None` as above."""
    if not isinstance(use, ConvUse) or len(use.shape) > 4:
        return None
    stride, padding, dilation, _, _, groups = use.geometry
    positions, fan_in = use.signal[0, 0].numel(), use.shape[1:].numel()
    if positions * groups * max(positions, fan_in) > use.shape.numel():
        return None
    a, kernel = use.a.detach(), list(use.shape[2:])
    if len(kernel) == 1:  # as an image of one row
        a, kernel = a.unsqueeze(2), [1, *kernel]
        stride, padding, dilation = [1, *stride], [0, *padding], [1, *dilation]
    patches = F.unfold(a, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))
    shape = (len(a), groups, -1, positions)
    signal = use.signal.reshape(shape).transpose(2, 3)
    return signal, patches.view(shape).transpose(2, 3)


def _gram(signal: Tensor, a: Tensor, weights: Weights) -> Tensor:
    """Σ_pq ⟨δ_p, δ_q⟩ ⟨a_p, a_q⟩, summed over groups, and what rounding may have taken off it."""
    (signal, s), (a, t) = _unit(signal), _unit(a)
    scale = s * t
    if weights.rows is not None:
        signal = signal * weights.rows.double().sqrt().view(signal.shape[1], 1, -1)
    if weights.rest is not None:
        a = a * weights.rest.double().sqrt().reshape(-1)
    products = (signal @ signal.mT).mul_(a @ a.mT).mul_(scale).mul_(scale.mT)
    sizes = (signal.norm(dim=-1) * a.norm(dim=-1) * scale.squeeze(-1)).sum(2)
    terms = signal.shape[-1] + a.shape[-1] + signal.shape[-2]
    slack = _slack(terms) * sizes.square()
    return products.sum((2, 3)).clamp(min=0).add(slack).sum(1)


def _slack(terms: int) -> float:
    return SLACK * terms * torch.finfo(torch.float64).eps


def _embedding(use: EmbeddingUse, weights: Weights) -> Tensor:
    """Σ_pq ⟨δ_p, δ_q⟩ / r over pairs of positions that read the same row."""
    index = use.a.reshape(len(use.a), -1)
    signal = use.own_signal(use.signal).double()
    for weight in (weights.rows, weights.entries):
        if weight is not None:
            signal = signal * weight.double().sqrt()[index]
    if weights.rest is not None:
        signal = signal * weights.rest.double().sqrt()
    same = index.unsqueeze(1) == index.unsqueeze(2)
    sizes = signal.norm(dim=-1)
    products = (signal @ signal.mT * same).sum((1, 2))
    most = (sizes.unsqueeze(1) * sizes.unsqueeze(2) * same).sum((1, 2))
    return products.clamp(min=0).add(_slack(sum(signal.shape[1:])) * most)


def _by_products(use: LayerUse, metric: Metric) -> tuple[Tensor, Sum]:
    """From the weight's gradients of some examples at a time, which are kept if these are all."""
    size = max(1, ROOM // use.shape.numel())

    def products() -> Iterator[Tensor]:
        for part in zip(use.signal.split(size), use.a.detach().split(size), strict=True):
            yield use.products(*part)  # the same numbers each time

    kept = [*products()] if len(use.a) <= size else None
    squares = [metric.squares(use.weight, part) for part in kept or products()]

    def weight_sum(factors: Tensor) -> Tensor:
        found = factors.new_zeros(use.shape)
        for c, part in zip(factors.split(size), kept or products(), strict=True):
            found += weighted_sum(c, part)
        return found

    return torch.cat(squares), weight_sum
