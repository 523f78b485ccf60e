"""Standard normal and uniform numbers from uniform words."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words = Callable[[int], NDArray[np.uint64]]
"""From a number to so many uniform 64-bit words."""

_PAIRS = 1 << 15
"""Pairs that are worked on at once: they fit into the cache."""


def uniforms(words: Words, count: int) -> Tensor:
    """`count` numbers k 2⁻⁵³ in [0, 1), each k equally likely, in float64."""
    whole = torch.from_numpy((words(count) >> np.uint64(11)).view(np.int64))
    return whole.to(torch.float64).mul_(2.0**-53)


def normals(words: Words, count: int, dtype: torch.dtype) -> Tensor:
    """`count` standard normal numbers, by the transform of Box and Muller.

    ε₁ = √(-2 ln u) cos 2πv and ε₂ = √(-2 ln u) sin 2πv. u has 53 bits and its logarithm is taken in
    float64, whatever the dtype: tails are right up to 8.5 standard deviations, which is where they
    end (mass 2⁻⁵³).
    """
    drawn = torch.empty(count + count % 2, dtype=dtype)
    for start in range(0, count, 2 * _PAIRS):
        _fill(drawn[start : start + 2 * _PAIRS], words)
    return drawn[:count]


def _fill(piece: Tensor, words: Words) -> None:
    pairs = len(piece) // 2
    radius = uniforms(words, pairs).add_(2.0**-53).log_().mul_(-2.0).to(piece.dtype).sqrt_()
    angle = _angles(words, pairs, piece.dtype)
    torch.mul(radius, torch.cos(angle), out=piece[:pairs])
    torch.mul(radius, angle.sin_(), out=piece[pairs:])


def _angles(words: Words, count: int, dtype: torch.dtype) -> Tensor:
    """Uniform on [-π, π), of 32 bits for float32 and of 64 for float64."""
    if dtype == torch.float64:
        whole = torch.from_numpy(words(count).view(np.int64))
        return whole.to(dtype).mul_(math.pi * 2.0**-63)
    half = torch.from_numpy(words(count // 2 + count % 2).view(np.int32))[:count]
    return half.to(dtype).mul_(math.pi * 2.0**-31)
