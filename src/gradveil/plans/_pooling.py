"""Mean squares over public batches."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._tensors import total
from gradveil._typing import Tensors

from ._evidence import Evidence


class Pooled(NamedTuple):
    """S and G: what stands for E‖∇g_i‖² and E g_i² (or the curvature h_i)."""

    slopes: Tensors
    squares: Tensors


def pool(
    batches: Sequence[Evidence], size: int, *, equally: bool = True, curvature: bool = False
) -> Pooled:
    """S and G for messages of `size` examples, from public batches.

    G = n E c_b² + n (n - 1) (E c_b)² over all examples b where they add up, the second square
    without its bias; else the mean of g² over batches. With `curvature` it is the mean of h.

    Args:
        batches: What public batches say.
        size: n.
        equally: Divide each batch by its own mean of s² and of g² first. After training a few
            examples have most of all gradients, and should not decide alone on a shape; the amount
            of noise is for the plain means.
        curvature: Take h in the place of g².
    """
    slopes = mean_of([_scaled(b.moments.known_squared_sensitivities, equally) for b in batches])
    if curvature or any(b.example_squares is None for b in batches):
        return Pooled(slopes, mean_of([_scaled(b.squares(curvature), equally) for b in batches]))
    return Pooled(slopes, _from_examples(batches, size, equally))


def _from_examples(batches: Sequence[Evidence], size: int, equally: bool) -> Tensors:
    """With g of a batch of B, Q = E Σ_b c_b² and M = (E g)²: G = Q B/n + (1 - 1/n) M.

    That is E g² for batches of n in place of B, of a loss that is a mean. With K batches the mean
    ḡ has E ḡ² = M + (Q - M/B)/K, from which M follows.
    """
    count, examples = len(batches), batches[0].examples
    spreads = [b.example_squares or {} for b in batches]
    weights = [_scale(spread) if equally else 1.0 for spread in spreads]
    spread = mean_of([_times(s, w) for s, w in zip(spreads, weights, strict=True)])
    mean = mean_of([_times(b.values or {}, w**0.5) for b, w in zip(batches, weights, strict=True)])
    known = 1 - 1 / (examples * count)
    squares = {}
    for name, own in spread.items():
        found = (mean[name].square() - own / count).clamp(min=0) / known if known else 0.0
        squares[name] = own * (examples / size) + (1 - 1 / size) * found
    return squares


def _scaled(squares: Mapping[str, Tensor], equally: bool) -> Tensors:
    return _times(squares, _scale(squares) if equally else 1.0)


def _scale(squares: Mapping[str, Tensor]) -> float:
    """1 over the mean; 0 where all is 0."""
    size = sum(square.numel() for square in squares.values())
    whole = float(total(squares.values()))
    return size / whole if whole > 0 else 0.0


def _times(tensors: Mapping[str, Tensor], factor: float) -> Tensors:
    return {name: tensor.detach() * factor for name, tensor in tensors.items()}


def mean_of(many: Sequence[Tensors]) -> Tensors:
    """The mean over batches, tensor by tensor."""
    return {name: torch.stack([one[name] for one in many]).mean(0) for name in many[0]}


def entries(tensors: Mapping[str, Tensor], chosen: Mapping[str, Tensor]) -> Tensor:
    """The chosen entries of each tensor in one row, in float64."""
    return torch.cat([tensors[n].reshape(-1)[index].double() for n, index in chosen.items()])
