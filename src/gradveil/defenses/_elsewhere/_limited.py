"""A shape from elsewhere, with limits that hold whatever is in it."""

from collections.abc import Mapping
from math import log

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


def limited_levels(shape: Shape, like: Mapping[str, Tensor], cap: float) -> Tensor:
    """r_i over the geometric mean of all levels, at most `cap`, in one row.

    Factors count within limits around their medians. The geometric mean is that of all entries: the
    logarithm of a level is a sum over its factors, so it is found from the factors alone.
    """
    shape.check(like)
    check_few_factors(shape)
    factors = _centred(shape, {name: value.numel() for name, value in like.items()})
    kinds = {value.dtype for value in like.values()}
    widest = torch.float64 if torch.float64 in kinds else torch.float32
    device = next(iter(like.values())).device
    row = torch.empty(sum(v.numel() for v in like.values()), dtype=widest, device=device)
    for name, level in unflatten(row, like).items():
        first, *others = (factor.to(level) for factor in factors[name])
        level.copy_(first)
        for factor in others:
            level.mul_(factor)
    return row.clamp_(LEAST, cap)


def check_few_factors(shape: Shape) -> None:
    """Require at most a few factors for each tensor: their product must not leave float32."""
    shape.check_sounds()
    most = max(map(len, shape.factors.values()), default=0)
    if most > MOST_FACTORS:
        raise ValueError(
            f"A shape should have at most {MOST_FACTORS} factors for a tensor. Found {most}."
            " Multiply some of them."
        )


def _centred(shape: Shape, sizes: Mapping[str, int]) -> dict[str, list[Tensor]]:
    """For each tensor the factors whose product is r_i over the geometric mean.

    All factors lie in one row on the way: operations on many small tensors would take longer.
    """
    factors = {name: shape.factors[name] or (torch.ones(()),) for name in sizes}
    flat = [factor.detach() for parts in factors.values() for factor in parts]
    lengths = [factor.numel() for factor in flat]
    logs = torch.cat([factor.reshape(-1) for factor in flat]).double().log_()
    medians = [_median(part) for part in logs.split(lengths)]
    logs.sub_(_repeated(medians, lengths)).clamp_(-WIDEST, WIDEST)
    means = iter([_mean(part) for part in logs.split(lengths)])
    middles = iter(medians)
    constants = {name: sum(next(middles) for _ in parts) for name, parts in factors.items()}
    middle = _weighted_median([(constants[name], size) for name, size in sizes.items()])
    levels = {name: min(max(c - middle, -WIDEST), WIDEST) for name, c in constants.items()}
    total = sum(
        sizes[name] * (levels[name] + sum(next(means) for _ in parts))
        for name, parts in factors.items()
    )
    overall = total / max(1, sum(sizes.values()))
    shifts = [
        0.0 if number else levels[name] - overall  # each tensor's own level, in its first factor
        for name, parts in factors.items()
        for number in range(len(parts))
    ]
    done = iter(logs.add_(_repeated(shifts, lengths)).exp_().split(lengths))
    return {name: [next(done).view(p.shape) for p in parts] for name, parts in factors.items()}


def _repeated(numbers: list[float], lengths: list[int]) -> Tensor:
    row = torch.tensor(numbers, dtype=torch.float64)
    return row.repeat_interleave(torch.tensor(lengths))


def _mean(logs: Tensor) -> float:
    return float(logs.mean() if len(logs) > 1 else logs) if len(logs) else 0.0


def _median(logs: Tensor) -> float:
    return float(logs.median() if len(logs) > 1 else logs) if len(logs) else 0.0


def _weighted_median(pairs: list[tuple[float, int]]) -> float:
    """The number at which half of the weight is reached."""
    half, passed = sum(weight for _, weight in pairs) / 2, 0
    for number, weight in sorted(pairs):
        passed += weight
        if passed >= half:
            return number
    return 0.0
