"""A shape from elsewhere, with limits that hold whatever is in it."""

from collections.abc import Mapping
from math import exp, log

import torch
from torch import Tensor

from gradveil._tensors import unflatten
from gradveil.plans import Shape

WIDEST = log(1e4)
"""A factor counts up to 1e4 times its median, and down to 1e-4 of it; so does a whole tensor."""

LEAST = 1e-9
"""Of a level, in units of the geometric mean: it stays above 0."""

MOST_FACTORS = 4
"""Of one tensor: rows, columns, positions and one number."""


class LimitedShape:
    """A shape's levels over their geometric mean, each factor within limits around its median.

    The geometric mean is that of all entries: the logarithm of a level is a sum over its factors,
    so it is found from the factors alone.
    """

    def __init__(self, shape: Shape, like: Mapping[str, Tensor]) -> None:
        shape.check(like)
        check_few_factors(shape)
        self._sizes = {name: value.shape for name, value in like.items()}
        self._factors = _centred(shape, {name: value.numel() for name, value in like.items()})

    def fits(self, like: Mapping[str, Tensor]) -> bool:
        """Whether it was made for values of these names and sizes."""
        return self._sizes == {name: value.shape for name, value in like.items()}

    def levels(self, like: Mapping[str, Tensor], cap: float) -> Tensor:
        """r_i, at most `cap`, in one row."""
        kinds = {value.dtype for value in like.values()}
        widest = torch.float64 if torch.float64 in kinds else torch.float32
        device = next(iter(like.values())).device
        row = torch.empty(sum(v.numel() for v in like.values()), dtype=widest, device=device)
        for name, level in unflatten(row, like).items():
            first, *others = self._factors[name]
            level.copy_(first)
            for factor in others:
                level.mul_(factor.to(level))
        return row.clamp_(LEAST, cap)


def check_few_factors(shape: Shape) -> None:
    """Require at most a few factors for each tensor: their product must not leave float32."""
    most = max(map(len, shape.factors.values()), default=0)
    if most > MOST_FACTORS:
        raise ValueError(
            f"A shape should have at most {MOST_FACTORS} factors for a tensor. Found {most}."
            " Multiply some of them."
        )


def _centred(shape: Shape, sizes: Mapping[str, int]) -> dict[str, list[Tensor]]:
    """For each tensor one number and its factors, whose product is r_i over the geometric mean."""
    logs = {n: [f.detach().double().log() for f in parts] for n, parts in shape.factors.items()}
    medians = {name: [_median(part) for part in parts] for name, parts in logs.items()}
    constants = {name: sum(parts) for name, parts in medians.items()}
    middle = _weighted_median([(constants[name], size) for name, size in sizes.items()])
    near = {
        name: [_near(part.sub_(m)) for part, m in zip(logs[name], medians[name], strict=True)]
        for name in sizes
    }
    levels = {name: min(max(constants[name] - middle, -WIDEST), WIDEST) for name in sizes}
    means = (levels[n] + sum(map(_mean, near[n])) for n in sizes)
    overall = sum(size * mean for size, mean in zip(sizes.values(), means, strict=True))
    overall /= max(1, sum(sizes.values()))
    return {
        name: [torch.tensor(exp(levels[name] - overall), dtype=torch.float64)]
        + [part.exp_() for part in parts]
        for name, parts in near.items()
    }


def _near(logs: Tensor) -> Tensor:
    return logs.clamp_(-WIDEST, WIDEST)


def _mean(logs: Tensor) -> float:
    return float(logs.mean()) if logs.numel() else 0.0


def _median(logs: Tensor) -> float:
    return float(logs.median()) if logs.numel() else 0.0


def _weighted_median(pairs: list[tuple[float, int]]) -> float:
    """The number at which half of the weight is reached."""
    half, passed = sum(weight for _, weight in pairs) / 2, 0
    for number, weight in sorted(pairs):
        passed += weight
        if passed >= half:
            return number
    return 0.0
