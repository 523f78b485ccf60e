"""A shape that fits into a given number of bytes."""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil.plans import Shape

Factors = tuple[Tensor, ...]


def small_shape(shape: Shape, like: Mapping[str, Tensor], most: float) -> Shape:
    """The shape with one number for those tensors whose factors would take too many bytes.

    Factors stay where they say most for what they take: by the variance of log r over the tensor,
    times its entries, for each byte. All tensors keep their geometric means. One number for each
    tensor is the least: a model of a few entries has no smaller shape.
    """
    reduced: dict[str, Factors] = {
        name: (_mean(parts, like[name]),) for name, parts in shape.factors.items()
    }
    left = most - sum(_bytes(name, parts) for name, parts in reduced.items())
    more = {n: _bytes(n, parts) - _bytes(n, reduced[n]) for n, parts in shape.factors.items()}
    worth = {n: _worth(parts, like[n]) / max(1, more[n]) for n, parts in shape.factors.items()}
    kept = dict(reduced)
    for name in sorted(worth, key=lambda name: -worth[name]):
        if worth[name] > 0 and more[name] <= left:
            kept[name], left = shape.factors[name], left - more[name]
    return Shape(kept)


def _bytes(name: str, parts: Factors) -> int:
    """What a tensor takes in a `PackedShape`."""
    line = json.dumps([name, *(list(part.shape) for part in parts)])
    codes = sum(part.numel() for part in parts if part.numel() > 1)
    return len(line.encode()) + len(", ") + 4 * len(parts) + codes


def _mean(parts: Factors, like: Tensor) -> Tensor:
    """The geometric mean of all levels of a tensor, as a factor of one number."""
    logs = torch.stack([part.detach().double().log().mean() for part in parts])
    return logs.sum().exp().to(like).reshape((1,) * like.dim())


def _worth(parts: Factors, like: Tensor) -> float:
    """Entries times the variance of log r; that of factors of different axes adds up."""
    logs = [part.detach().double().log() for part in parts if part.numel() > 1]
    return like.numel() * sum(float(log.var(correction=0)) for log in logs)
