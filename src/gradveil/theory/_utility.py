"""What a defense costs in training: U1, U2, the expected decrease and the share of the optimum."""

from math import isinf
from typing import NamedTuple

import torch

from gradveil._checks import (
    check_at_most,
    check_choice,
    check_finite,
    check_kind,
    check_positive,
    check_values,
)
from gradveil._tensors import Tensors, total
from gradveil.mechanisms import AnyMechanism, Mechanism, as_tensors, check_mechanism
from gradveil.sensitivity import Moments, check_moments

from ._fisher import entry_information, seen_trace


class Utility(NamedTuple):
    """The mean and the negative variance of the loss decrease in one step, to first order."""

    first: float
    """U1 = E[g · y]."""
    second: float
    """U2 = -Var[g · y]."""


def utility(values: Tensors, mechanism: AnyMechanism) -> Utility:
    """U1 = Σ_i g_i E[y_i] and U2 = -Σ_i g_i² Var[y_i] of a mechanism at the values g.

    >>> from gradveil.mechanisms import Mechanism
    >>> utility({"w": torch.tensor([1.0, 2.0])}, Mechanism(std=0.5))
    Utility(first=5.0, second=-1.25)
    """
    check_values(values)
    check_mechanism(mechanism)
    check_finite(values)
    means, variances = mechanism.mean(values), mechanism.variance(values)
    first = float(total(v * means[n] for n, v in values.items()))
    spread = float(total(v.square() * variances[n] for n, v in values.items()))
    return Utility(first, 0.0 - spread)


def expected_decrease(
    moments: Moments, mechanism: AnyMechanism, lr: float, optimizer: str = "sgd"
) -> float:
    """The expected decrease of the loss in one step, with what noise costs by the curvature.

    A step Δθ_i = -η p_i y_i with what was sent, y, lets a loss with the gradient g and the diagonal
    curvature h fall by

        η Σ p_i g_i E[y_i] - ½ η² Σ p_i² h_i Var[y_i]

    in expectation, up to a term that no defense changes. η is the learning rate, and p_i is

    - 1 for "sgd": the first term is η U1, and noise costs ½ η² Σ h_i Σ_ii. With momentum β give
      η/(1-β), the length of the step that a gradient makes in the end.
    - 1/√E[y_i²] for "adam": noise gets into the second moments, by which Adam divides, and makes
      the useful part of the step shorter. That costs far more than the curvature.

    It orders amounts of noise well, shapes of one trace bound less well, and for Adam not at all
    (the study `utility-predicts-training`).

    The moments are those of `measure(..., examples=True)`; for Adam, a mean over batches.

    >>> ones = {"w": torch.ones(2)}
    >>> moments = Moments(ones, None, input_size=5, squared_example_values=ones)
    >>> from gradveil.mechanisms import Mechanism
    >>> decrease = expected_decrease(moments, Mechanism(std=3.0), lr=0.1)
    >>> round(decrease, 6)  # 0.1 · 2 - ½ · 0.01 · 2 · 9
    0.11
    """
    check_moments(moments)
    check_mechanism(mechanism)
    check_positive(lr, "lr")
    check_at_most(lr, "lr")
    check_choice(optimizer, "optimizer", ("sgd", "adam"))
    curvatures = moments.known_squared_example_values
    values = {name: square.double().sqrt() for name, square in moments.squared_values.items()}
    means, variances = mechanism.mean(values), mechanism.variance(values)
    steps: Tensors | dict[str, float] = dict.fromkeys(means, 1.0)
    if optimizer == "adam":  # 0 where it has nothing to divide, because nothing is ever sent
        powers = {name: mean.square() + variances[name] for name, mean in means.items()}
        steps = {n: torch.where(power > 0, power.rsqrt(), 0.0) for n, power in powers.items()}
    gain = total(steps[n] * v * means[n] for n, v in values.items())
    cost = total(steps[n] ** 2 * h * variances[n] for n, h in curvatures.items())
    return float(lr * gain - 0.5 * lr**2 * cost)


def gain_over_isotropic(moments: Moments, mechanism: Mechanism) -> float:
    """How many times larger the (flat-prior, trace) bound is than isotropic noise's at equal U2.

    Isotropic noise of equal second-order utility has the variance v = Σ g_i² Σ_ii / Σ g_i².

    >>> from gradveil import Moments, OptimalNoise
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> round(gain_over_isotropic(moments, OptimalNoise(scale=1.0).plan(moments)), 3)
    1.562
    """
    spent, squares = _utility_sum(moments, mechanism), float(total(moments.squared_values.values()))
    if squares == 0 or spent == 0:
        return 1.0
    isotropic = Mechanism(std=(spent / squares) ** 0.5, clip=mechanism.clip)
    least, trace = seen_trace(moments, isotropic), seen_trace(moments, mechanism)
    if trace == 0:
        return 1.0 if least == 0 else float("inf")
    return least / trace


def share_of_optimum(moments: Moments, mechanism: Mechanism) -> float:
    """The share of the largest bound reachable at this utility: 1 for Theorem 2's noise.

    (Σ_i s_i |g_i|)² / [(Σ_i s_i² / v_i) (Σ_i g_i² v_i)], v being the mechanism's variances and
    s, g the exact moments of what it sends (clamped and pruned entries do not count); at most 1
    by Cauchy's inequality. 1 where nothing is revealed, 0 where something is sent bare.

    >>> from gradveil import GradientNoise, Moments, OptimalNoise
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> plans = [kind(scale=1.0).plan(moments) for kind in (GradientNoise, OptimalNoise)]
    >>> [round(share_of_optimum(moments, plan), 3) for plan in plans]
    [0.64, 1.0]
    """
    spent, trace = _utility_sum(moments, mechanism), seen_trace(moments, mechanism)
    seen = entry_information(moments, Mechanism(1.0, mechanism.keep, mechanism.clip))
    squares = moments.squared_values
    best = float(total((square * seen[name]).sqrt() for name, square in squares.items()))
    if trace == 0:
        return 1.0
    if best == 0 or isinf(trace):
        return 0.0
    return best**2 / (trace * spent)


def _utility_sum(moments: Moments, mechanism: Mechanism) -> float:
    """Σ_i g_i² Σ_ii."""
    check_moments(moments)
    check_kind(mechanism, "mechanism", Mechanism, "These figures are of noise alone.")
    squares = moments.squared_values
    stds = as_tensors(mechanism.std, squares)
    return float(total(g2 * stds[n].square() for n, g2 in squares.items()))


def selects(mechanism: AnyMechanism) -> bool:
    """Whether the plan chose entries to prune or clamp: `plan_information` does not count that."""
    if not isinstance(mechanism, Mechanism) or mechanism.clip is not None:
        return True
    keep = mechanism.keep
    levels = keep.values() if isinstance(keep, dict) else ([] if keep is None else [keep])
    return any(bool((torch.as_tensor(level) < 1).any()) for level in levels)


def shows_selection(mechanism: AnyMechanism, values: Tensors) -> bool:
    """Whether some entries, not all, are pruned or clamped without noise that hides it.

    Exact zeros of a mask, and exactly ±P of clamped entries, are noise-free functions of whatever
    the mask or the noise levels were made from.
    """
    if not isinstance(mechanism, Mechanism):
        return False
    std, keep, clip = mechanism.std, mechanism.keep, mechanism.clip
    bare = {name: level == 0 for name, level in as_tensors(std, values).items()}
    shown = {name: torch.zeros_like(own) for name, own in bare.items()}
    if isinstance(keep, dict) and any(bool((share > 0).any()) for share in keep.values()):
        shown = {name: share < 1 for name, share in keep.items()}
    if clip is not None and isinstance(std, dict):
        limits = as_tensors(clip, values)
        shown = {n: shown[n] | (v.abs() >= limits[n]) for n, v in values.items()}
    return any(bool((bare[name] & own).any()) for name, own in shown.items())
