"""From tangents of layers to squared sensitivities of their parameters.

For example b, position p and direction v, the weight's gradient moves by
G'_b = Σ_p δ'_bp a_bpᵀ + δ_bp a'_bpᵀ = P_b + Q_b, and s² = E_v Σ_b (P_b + Q_b)².
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil.messages import LayerUse, LinearUse, ScaleUse

from .._shrinkage import TINY, smooth, smooth_sum

CHUNK = 2**23
"""How many numbers of per-example weight tangents are held at a time."""

Pair = tuple[Tensor, Tensor]
"""(a', δ') of one layer along one direction."""


class Energy(NamedTuple):
    """What a layer's norms say before any product is formed: upper limits of its sums."""

    signal: float
    """Of Σ P²: ‖δ'‖² ‖a‖²."""
    inputs: float
    """Of Σ Q²: ‖δ‖² ‖a'‖²."""
    gradient: float
    """Of Σ g²: ‖δ‖² ‖a‖²."""

    @property
    def signal_part(self) -> float:
        """Roughly what part of the squares comes from P."""
        return self.signal / max(self.signal + self.inputs, TINY)

    @property
    def mass(self) -> float:
        """Roughly Σ s |g|, what the layer counts in the optimum."""
        return math.sqrt((self.signal + self.inputs) * self.gradient)


def energy(use: LayerUse, tangent: Pair) -> Energy:
    """The norms of one layer; 0 for the scale of a normalising layer, which is small."""
    if isinstance(use, ScaleUse):
        return Energy(0.0, 0.0, 0.0)
    tensors = (*tangent, use.a.detach(), use.signal)
    a_moved, signal_moved, a, signal = (t.flatten(1).norm(dim=1).double() for t in tensors)
    products = (signal_moved * a, signal * a_moved, signal * a)
    return Energy(*torch.stack(products).square().sum(1).tolist())


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
        use: The layer.
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
            fourth += _add_squares(total, _moved(use, pair, chunk, with_signal, True))
        if along is not None:
            exact += _moved(use, along, chunk, True, with_signal).square_().sum(0)
    form = (*total.shape[:2], -1) if total.dim() > 1 else tuple(total.shape)
    smoothed = smooth_sum(total.view(form), fourth).view_as(total)
    return smoothed.div_(len(rest)).add_(exact)


def vector_squares(move: Callable[[Pair], Tensor], rest: list[Pair], along: Pair | None) -> Tensor:
    """s² of a small parameter from its per-example derivatives, (examples, *shape)."""
    squares = torch.cat([move(pair) for pair in rest]).square_()
    smoothed = smooth_sum(squares.sum(0), squares.square().sum()) / len(rest)
    return smoothed if along is None else smoothed + move(along).square().sum(0)


def _moved(use: LayerUse, pair: Pair, chunk: slice, with_signal: bool, with_inputs: bool) -> Tensor:
    """P + Q of some examples, or one of them alone."""
    parts = []
    if with_inputs:
        parts.append(use.products(use.signal[chunk], pair[0][chunk]))
    if with_signal:
        parts.append(use.products(pair[1][chunk], use.a.detach()[chunk]))
    return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])


def _add_squares(total: Tensor, moved: Tensor) -> Tensor:
    """Add up over examples; returns the sum of the fourth powers."""
    squares = moved.square_().flatten(1)
    total += squares.sum(0).view_as(total)
    return squares.flatten().dot(squares.flatten())


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
