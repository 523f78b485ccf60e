"""Mean squares over public batches, each batch counting the same."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._tensors import total
from gradveil._typing import Tensors

from ._evidence import Evidence


class Pooled(NamedTuple):
    """S and G: what stands for E‖∇g_i‖² and E g_i², up to a constant each."""

    slopes: Tensors
    squares: Tensors


def pool(batches: Sequence[Evidence], size: int) -> Pooled:
    """S and G for messages of `size` examples, from public batches.

    Each batch is first divided by its own Σ s² and Σ g²: after training a few examples have most
    of all gradients, and must not decide alone. A plan is judged batch by batch as well.

    G = n E g_b² + n (n - 1) (E g_b)² over all examples b where they add up, the second square
    without its bias; else the mean of g² over batches.
    """
    slopes = _mean([_unit(b.moments.known_squared_sensitivities) for b in batches])
    if any(b.example_squares is None for b in batches):
        return Pooled(slopes, _mean([_unit(dict(b.moments.squared_values)) for b in batches]))
    return Pooled(slopes, _from_examples(batches, size))


def _from_examples(batches: Sequence[Evidence], size: int) -> Tensors:
    """With g the gradient of a batch of B, Q = E Σ_b g_b² and M = (E g)²: G = Q B/n + (1 - 1/n) M.

    That is E g² for batches of n in place of B, of a loss that is a mean. With K batches the mean
    ḡ has E ḡ² = M + (Q - M/B)/K, from which M follows.
    """
    count, examples = len(batches), batches[0].examples
    weights = [_scale(b.spread) ** 0.5 for b in batches]
    spread = _mean([_unit(b.spread) for b in batches])
    mean = _mean([_times(b.values or {}, w) for b, w in zip(batches, weights, strict=True)])
    known = 1 - 1 / (examples * count)
    squares = {}
    for name, own in spread.items():
        found = (mean[name].square() - own / count).clamp(min=0) / known if known else 0.0
        squares[name] = own * (examples / size) + (1 - 1 / size) * found
    return squares


def _unit(squares: Tensors) -> Tensors:
    return _times(squares, _scale(squares))


def _scale(squares: Tensors) -> float:
    """1 over the mean; 0 where all is 0."""
    size = sum(square.numel() for square in squares.values())
    whole = float(total(squares.values()))
    return size / whole if whole > 0 else 0.0


def _times(tensors: Tensors, factor: float) -> Tensors:
    return {name: tensor * factor for name, tensor in tensors.items()}


def _mean(many: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([one[name] for one in many]).mean(0) for name in many[0]}


def entries(tensors: Tensors, chosen: dict[str, Tensor]) -> Tensor:
    """The chosen entries of each tensor in one row, in float64."""
    return torch.cat([tensors[n].reshape(-1)[index].double() for n, index in chosen.items()])
