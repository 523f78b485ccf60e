"""Noise on a grid, so that floating point reveals nothing."""

import math

import torch
from torch import Tensor

from gradveil._checks import check_choice, check_count, check_finite, check_positive, check_tensor

from ._discrete import FINEST, check_bits, discrete_normal

GRID_BITS = 20
"""The usual fineness: the standard deviation of the noise is 2²⁰ steps."""

_LOST = 2.0**-10
"""The share of a clip that rounding may cost before a finer grid is taken."""

_SLACK = 1 + 1e-9
"""For the division that finds the nearest step, which is done in float64."""

_LARGEST = 2**52
"""Steps: sums of two such numbers are exact."""


def grid_step(std: float, bits: int = GRID_BITS) -> float:
    """The step of the grid on which noise of this standard deviation is drawn: std / 2^bits.

    >>> grid_step(1.0, bits=20) == 2**-20
    True
    """
    check_positive(std, "std")
    check_bits(bits)
    return std * 2.0**-bits


def bits_for_grid(noise_multiplier: float, entries: int) -> int:
    """The fineness for noise z C on d entries: 20 bits, or so many more that √d steps are C/1024.

    24 at most, the finest that `discrete_normal` has. Only public numbers go into it.

    >>> bits_for_grid(1.0, 119_530), bits_for_grid(50.0, 119_530)
    (20, 24)
    """
    check_positive(noise_multiplier, "noise_multiplier")
    check_count(entries, "entries")
    needed = math.ceil(math.log2(noise_multiplier * math.sqrt(entries) / _LOST))
    return min(FINEST, max(GRID_BITS, needed))


def clip_for_grid(clip: float, entries: int, step: float, *, rounded: str = "each") -> float:
    """The norm to clip to, so that what was rounded to the grid is still within `clip`.

    Rounding moves each of d entries by half a step at most, a vector by √d/2 steps. So an example
    that is clipped to C - √d/2 · step and then rounded has norm C at most ("each": examples are
    rounded one by one, and their sum is exact). Where only the sum of a batch is rounded, adding an
    example may move it by a whole step more in each entry: C - √d · step ("sum").

    Args:
        clip: The sensitivity C that is accounted for.
        entries: Of the vector, d.
        step: Of the grid.
        rounded: "each" or "sum".

    >>> round(clip_for_grid(1.0, 10_000, 1e-4), 6)
    0.995
    """
    check_positive(clip, "clip")
    check_count(entries, "entries")
    check_positive(step, "step")
    check_choice(rounded, "rounded", ("each", "sum"))
    lost = _SLACK * math.sqrt(entries) * step * (0.5 if rounded == "each" else 1.0)
    if lost >= clip:
        raise ValueError(
            f"Parameter `step` should leave something of the clip: rounding {entries} entries"
            f" changes their norm by up to {lost:.3g}. Found `step = {step}` and `clip = {clip}`."
            " Take a finer grid: more `bits`."
        )
    return clip - lost


def release_on_grid(
    values: Tensor, std: float | Tensor, generator: torch.Generator, bits: int = GRID_BITS
) -> Tensor:
    """y = step · (round(values / step) + n), n from the discrete Gaussian of std/step = 2^bits.

    Formal guarantees: y is a function of integers; no property of floating-point numbers (which
    sums can occur, how dense they lie) tells anything about the values beyond their nearest steps.
    For values whose roundings differ by at most Δ in the Euclidean norm, the Rényi divergence of
    order α is at most α Δ²/(2 std²), that of the Gaussian mechanism (`discrete_normal`);
    `clip_for_grid` gives the norm to clip to. The arithmetic before (gradients, sums) is not
    covered: `ClippedMessage` says how sums are kept within the clip.

    Cost: 23 million entries per second of processor time, see `discrete_normal`.

    Args:
        values: What to release.
        std: The standard deviation of the noise. With a tensor in the shape of the values each
            entry has a step of its own, and norms are those of values / std.
        generator: A `SecureGenerator`; a plain one for runs to repeat.
        bits: The fineness of the grid.

    >>> sent = release_on_grid(torch.ones(3), 0.5, torch.Generator().manual_seed(0), bits=4)
    >>> (sent / grid_step(0.5, bits=4)) % 1
    tensor([0., 0., 0.])
    """
    check_tensor(values, "values")
    check_finite({"values": values})
    step = _steps(std, values, bits) if isinstance(std, Tensor) else grid_step(std, bits)
    steps = (values.to(torch.float64) / step).round_()
    if bool((steps.abs() > _LARGEST).any()):
        raise ValueError(
            f"Parameter `values` should be within {_LARGEST} steps of the grid. Found"
            f" {float(steps.abs().max()):.3g}. Clip them, or take fewer `bits`."
        )
    noise = discrete_normal(values.numel(), bits, generator).view(values.shape)
    whole = steps.to(torch.int64) + noise.to(values.device)
    return (whole.to(torch.float64) * step).to(values.dtype)


def _steps(std: Tensor, values: Tensor, bits: int) -> Tensor:
    """The step of each entry, in float64."""
    check_tensor(std, "std")
    check_bits(bits)
    if std.shape != values.shape or not bool((std > 0).all() & std.isfinite().all()):
        raise ValueError(
            "Parameter `std` should be finite, above 0 and in the shape of the values,"
            f" {tuple(values.shape)}. Found the shape {tuple(std.shape)}, and its smallest number"
            f" {float(std.min()):.3g}. Send no entry without noise."
        )
    return std.to(torch.float64) * 2.0**-bits
