"""Reconstruction robustness: how probable success is at most, for any attacker and any data."""

import math

import torch
from torch import Tensor

from gradveil._checks import check_count, check_flag, check_inputs, check_not_negative

from ._checks import check_probability
from ._gaussian import gaussian_tradeoff
from ._opacus import loss_curve

_ROWS = 512
"""Examples whose distances to all others are computed at once."""


def recognition_bound(
    guess: float, noise_multiplier: float, sample_rate: float, steps: int
) -> float:
    """P[success] ≤ min_ε (e^ε κ + δ(ε)), from the privacy loss of T sampled Gaussian releases.

    Success is any event that an attacker without the release has with probability κ at most: to
    name the example among N, or to give one within some error. He may know everything but that
    example, the model and all releases included. The smallest over all real ε is the largest
    probability under P of an event of probability κ under Q, P being the releases with the example
    and Q those without. For q = 1 it is Φ(Φ⁻¹(κ) + √T/z); for q < 1 an upper bound that the
    accountant's error makes larger by 0.1 % to 1 %.

    References: Hayes, Mahloujifar and Balle, "Bounding Training Data Reconstruction in DP-SGD",
    2023; Balle, Cherubin and Hayes, "Reconstructing Training Data with Informed Adversaries", 2022.

    Args:
        guess: κ, the chance of the best blind guess (`guess_probability`).
        noise_multiplier: z, for per-example clipping to C and noise z C.
        sample_rate: q, of Poisson sampling; 1 if all examples are in every step.
        steps: T.

    >>> round(recognition_bound(0.1, noise_multiplier=4.0, sample_rate=1.0, steps=16), 3)
    0.389
    """
    check_probability(guess, "guess")
    check_not_negative(noise_multiplier, "noise_multiplier")
    check_probability(sample_rate, "sample_rate")
    check_count(steps, "steps")
    if noise_multiplier == 0:
        return 1.0
    if sample_rate == 1:
        return gaussian_tradeoff(guess, math.sqrt(steps) / noise_multiplier)
    curve = loss_curve(sample_rate, noise_multiplier, steps, delta_error=1e-4 * guess)
    return 1.0 if curve is None else curve.tradeoff(guess)


def guess_probability(
    examples: Tensor, radius: float | None = None, *, any_point: bool = False
) -> float:
    """κ from N public examples: the chance of the best blind guess.

    Without a radius, that of naming one of the N: 1/N. With a radius η, the largest share of the
    examples whose mean squared error from one point is η at most, over the examples themselves and
    their mean. A point between examples can be better; a ball of radius √η around any point lies in
    the ball of radius 2√η around each example in it, so with `any_point` the share is that of 4η
    around examples, which no point exceeds.

    Args:
        examples: Of shape (N, ...), drawn like the private ones.
        radius: η, in the units of the examples, squared.
        any_point: Whether to bound the chance of every point, also of those that are not tried.

    >>> guess_probability(torch.tensor([[0.0], [0.1], [5.0], [9.0]]), 0.02)
    0.5
    """
    check_inputs(examples, "examples")
    check_flag(any_point, "any_point")
    if radius is None:
        return 1 / len(examples)
    check_not_negative(radius, "radius")
    rows = examples.detach().flatten(1) if examples.dim() > 1 else examples.detach()[:, None]
    rows = rows.to(torch.float64)
    points = rows if any_point else torch.cat([rows, rows.mean(0, keepdim=True)])
    within = (4 if any_point else 1) * radius * rows.shape[1]
    return max(_largest_share(rows, piece, within) for piece in points.split(_ROWS))


def _largest_share(rows: Tensor, points: Tensor, within: float) -> float:
    """The largest share of rows whose squared distance from one of the points is at most this."""
    squares = torch.cdist(points, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    allowed = within * (1 + 1e-9) + 1e-300
    return float((squares <= allowed).to(torch.float64).mean(1).max())
