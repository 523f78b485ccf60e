"""The noise that is optimal for training with Adam."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gradveil._tensors import Tensors, total
from gradveil.defenses import capped, least_square, raise_to_least, sensitivity_shape
from gradveil.sensitivity import Moments


def adam_variances(moments: Moments, trace: float) -> Tensors:
    """Variances v with the largest Σ g_i²/√(g_i² + v_i) at the trace Σ s_i²/v_i, up to a constant.

    What Adam gains in a step is the first sum: it divides by the root of what it has seen on the
    average, noise included. Its KKT condition g_i²/(g_i² + v_i)^(3/2) ∝ s_i²/v_i² is, with
    v_i = g_i² x_i, one equation for each entry,

        x_i² / (1 + x_i)^(3/2) = μ s_i² / |g_i|³,

    and one multiplier μ for all, which sets the amount. So the shape depends on the amount: it is
    s √|g| where noise is small, and (s/|g|)⁴ where it is large. Caps and floors are those of
    `OptimalNoise`; μ is looked for on about 2¹³ entries, evenly spread.
    """
    squares, slopes = moments.squared_values, moments.known_squared_sensitivities
    ratios = capped(sensitivity_shape(moments, "parameter", 1e-4).levels(moments.like), 100.0)
    least = {n: g2.clamp(min=least_square(g2, 1e-4)) for n, g2 in squares.items()}
    wanted = total(torch.where(r > 0, slopes[n] / r, 0.0) for n, r in ratios.items())
    allowed = trace * float(total(least[n] * r for n, r in ratios.items()) / wanted)
    variances = optimum(ratios, least, allowed)
    return raise_to_least({n: v * (squares[n] > 0) for n, v in variances.items()}, 0.25)


def optimum(ratios: Tensors, squares: Tensors, allowed: float) -> Tensors:
    """The variances at the trace `allowed` of s_i = r_i |g_i|; 0 where r_i is."""
    size = sum(ratio.numel() for ratio in ratios.values())
    spread = max(1, size // 2**13)
    ratio, square = (
        torch.cat([own[name].detach().reshape(-1)[::spread].double() for name in ratios])
        for own in (ratios, squares)
    )
    seen = ratio > 0
    ratio, square = ratio[seen], square[seen]
    middle = -float(_log_k(ratio, square).median())
    low, high = middle - 150.0, middle + 150.0
    for _ in range(60):
        multiplier = (low + high) / 2
        revealed = float((ratio.square() * square / _levels(ratio, square, multiplier)).sum())
        large = revealed * size / len(seen) < allowed
        low, high = (low, multiplier) if large else (multiplier, high)
    found = {}
    for name, own in ratios.items():  # in their precision, as far as that holds the number
        limits = torch.finfo(own.dtype)
        levels = _levels(own.double(), squares[name].double(), low)
        found[name] = (levels.clamp(limits.tiny, limits.max) * own.sign()).to(own.dtype)
    return found


def _levels(ratio: Tensor, square: Tensor, multiplier: float) -> Tensor:
    """g² x, with Newton's method for u = log x; from the left it never overshoots."""
    goal = multiplier + _log_k(ratio, square)
    u = torch.where(goal < 0, goal / 2, 2 * goal)
    for _ in range(10):
        error = goal - 2 * u + 1.5 * softplus(u)
        u = u + error / (2 - 1.5 * torch.sigmoid(u))
    return square * u.exp()


def _log_k(ratio: Tensor, square: Tensor) -> Tensor:
    """log(s²/|g|³) = 2 log(s/|g|) - log|g|."""
    return 2 * ratio.clamp(min=1e-300).log() - 0.5 * square.log()
