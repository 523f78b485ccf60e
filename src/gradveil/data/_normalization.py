"""Normalisation of pixel values, per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._batches import check_pair


class Normalization(NamedTuple):
    """`input = (pixel - mean) / std` for pixels in [0, 1], per channel.

    A tuple of one number holds for every channel.

    >>> Normalization((0.5,), (0.25,))
    Normalization(mean=(0.5,), std=(0.25,))
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


IDENTITY = Normalization((0.0,), (1.0,))
MNIST = Normalization((0.1307,), (0.3081,))
CIFAR10 = Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))

KNOWN = {"mnist": MNIST, "cifar10": CIFAR10, "none": IDENTITY}

NormalizationLike = str | tuple[Sequence[float], Sequence[float]] | None


def resolve_normalization(value: NormalizationLike) -> Normalization | None:
    """A `Normalization` from a name or a pair; None stays None.

    >>> resolve_normalization("mnist").std
    (0.3081,)
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value not in KNOWN:
            raise ValueError(
                f"Parameter `normalization` should be one of {', '.join(KNOWN)}, or a pair of "
                f"means and standard deviations. Found `normalization={value!r}`. Try "
                f"`normalization=((0.5,), (0.25,))`."
            )
        return KNOWN[value]
    mean, std = check_pair(value, "normalization")
    for numbers in (mean, std):
        check_numbers(numbers, "normalization")
    if min(std) <= 0:
        raise ValueError(
            "Parameter `normalization` should hold standard deviations above 0. Found"
            f" {list(std)}. Give (means, standard deviations), in this order."
        )
    return Normalization(tuple(map(float, mean)), tuple(map(float, std)))


def check_numbers(numbers: object, name: str) -> None:
    """Require a sequence of finite numbers, at least one."""
    known = isinstance(numbers, Sequence) and not isinstance(numbers, str) and len(numbers) > 0
    for number in numbers if known else ():  # type: ignore[attr-defined]
        known = known and isinstance(number, (int, float)) and math.isfinite(number)
    if not known:
        raise ValueError(
            f"Parameter `{name}` should hold finite numbers, one or one for each channel. Found"
            f" `{name} = {numbers!r}`. Give a tuple, as (0.5,)."
        )


def observed_normalization(inputs: Tensor) -> Normalization:
    """The normalisation under which floats of unknown units span [0, 1], per feature of a table.

    Floats that lie in [0, 1] already are pixels.

    >>> observed_normalization(torch.tensor([[-1.0, 0.0], [3.0, 5.0]]))
    Normalization(mean=(0.25, -0.0), std=(0.25, 0.2))
    """
    if inputs.numel() == 0 or (inputs.min() >= 0 and inputs.max() <= 1):
        return IDENTITY
    table = inputs if inputs.ndim == 2 else inputs.reshape(-1, 1)
    low, high = table.double().aminmax(dim=0)
    width = torch.where(high > low, high - low, 1.0)
    return Normalization(tuple((-low / width).tolist()), tuple((1 / width).tolist()))
