"""A shape in few bytes: one float for each factor, one byte for each of its numbers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradveil._checks import check_kind
from gradveil.plans import Shape

STEPS = 16
"""Codes for a factor of two: levels are rounded by at most 2.2 %."""

MIDDLE = 128
"""The code of a factor's geometric mean."""

MOST_AXES = 16
"""Of a factor, below this."""


@dataclass(frozen=True, eq=False)
class PackedShape:
    """A shape as a server sends it; rounded, so that all who unpack it have the same.

    A number f of a factor with geometric mean c has the code 128 + 16 log₂(f/c), rounded and in
    [0, 255]: up to 256 times the mean. A factor of one number is its mean, without a code.
    """

    layout: str
    """Names and the sizes of their factors, as JSON: [["weight", [8, 1], [1, 5]], ...]."""
    means: Tensor
    """c of each factor, float32."""
    codes: Tensor
    """Of all numbers, uint8."""

    def __post_init__(self) -> None:
        check_kind(self.layout, "layout", str, "Use `PackedShape.of(shape)`.")
        for name, kind in (("means", torch.float32), ("codes", torch.uint8)):
            part = getattr(self, name)
            if not isinstance(part, Tensor) or part.dtype is not kind or part.dim() != 1:
                raise ValueError(
                    f"Parameter `{name}` should be one row of {kind}. Found"
                    f" {part.dtype if isinstance(part, Tensor) else type(part).__name__}. Use"
                    " `PackedShape.of(shape)`."
                )

    @classmethod
    def of(cls, shape: Shape) -> "PackedShape":
        """The shape with its levels rounded."""
        layout = [[name, *map(_sizes, parts)] for name, parts in shape.factors.items()]
        logs = [part.detach().double().cpu().log2().reshape(-1) for part in _flat(shape)]
        means = [log.mean() for log in logs]
        codes = [
            (MIDDLE + STEPS * (log - mean)).round().clamp(0, 255).to(torch.uint8)
            for log, mean in zip(logs, means, strict=True)
            if len(log) > 1
        ]
        row = torch.cat(codes) if codes else torch.zeros(0, dtype=torch.uint8)
        return cls(json.dumps(layout), torch.stack(means).exp2().float(), row)

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return len(self.layout.encode()) + 4 * len(self.means) + len(self.codes)

    def shape(self) -> Shape:
        """The shape. What no server of ours would have sent is an error.

        Raises:
            ValueError: If the parts do not fit each other, or if a level is not finite or not
                above 0.
        """
        means, codes = (part.cpu().numpy().tobytes() for part in (self.means, self.codes))
        return _unpacked(self.layout, means, codes)


@lru_cache(maxsize=1)
def _unpacked(layout: str, means: bytes, codes: bytes) -> Shape:
    """The last shape stays as it is for the next message: so do the plans that it has."""
    lines = _read(layout)
    sizes = [size for _, *parts in lines for size in parts]
    coded = sum(prod(size) for size in sizes if prod(size) > 1)
    if 4 * len(sizes) != len(means) or coded != len(codes):
        raise ValueError(
            f"A packed shape should have {len(sizes)} means and {coded} codes, as its layout"
            f" says. Found {len(means) // 4} and {len(codes)}."
        )
    numbers = np.frombuffer(means, np.float32).copy(), np.frombuffer(codes, np.uint8).copy()
    factors = _factors(sizes, *map(torch.from_numpy, numbers))
    return Shape({name: tuple(next(factors) for _ in parts) for name, *parts in lines})


def _factors(sizes: list[list[int]], means: Tensor, codes: Tensor) -> Iterator[Tensor]:
    levels = ((codes.float() - MIDDLE) / STEPS).exp2()
    place = 0
    for mean, size in zip(means, sizes, strict=True):
        if prod(size) > 1:
            yield mean * levels[place : place + prod(size)].view(size)
            place += prod(size)
        else:
            yield mean.reshape(size)


def _flat(shape: Shape) -> list[Tensor]:
    return [part for parts in shape.factors.values() for part in parts]


def _sizes(factor: Tensor) -> list[int]:
    return list(factor.shape)


def _read(text: str) -> list[Any]:
    """The layout, if it is one: a list of names, each once, with lists of sizes above 0."""
    try:
        layout = json.loads(text)
    except (ValueError, RecursionError):
        layout = None
    good = isinstance(layout, list) and all(map(_is_line, layout))
    if not good or len({line[0] for line in layout}) < len(layout):
        raise ValueError(
            'The layout of a packed shape should read [["name", [rows, 1], [1, columns]], ...],'
            f" each name once. Found {text[:100]!r}."
        )
    return list(layout)


def _is_line(line: object) -> bool:
    return (
        isinstance(line, list)
        and len(line) > 1
        and isinstance(line[0], str)
        and all(isinstance(part, list) and len(part) < MOST_AXES for part in line[1:])
        and all(_is_size(number) for part in line[1:] for number in part)
    )


def _is_size(number: object) -> bool:
    return type(number) is int and 0 < number < 2**31
