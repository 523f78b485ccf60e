"""Normalisation of pixel values, per channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


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
    mean, std = (tuple(float(number) for number in numbers) for numbers in value)
    return Normalization(mean, std)


def observed_normalization(inputs: Tensor) -> Normalization:
    """The normalisation under which floats of unknown units span [0, 1], per feature of a table.

    Floats that lie in [0, 1] already are pixels.
    """
    if inputs.numel() == 0 or (inputs.min() >= 0 and inputs.max() <= 1):
        return IDENTITY
    table = inputs if inputs.ndim == 2 else inputs.reshape(-1, 1)
    low, high = table.double().aminmax(dim=0)
    width = torch.where(high > low, high - low, 1.0)
    return Normalization(tuple((-low / width).tolist()), tuple((1 / width).tolist()))
