"""The finish with a denoiser: the message's best fit near what it makes of the image, again."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import jvp, vjp

from .._evidence import Denoised, Near
from .._reconstruction import FINISHED
from ._optimise import Watch, clamp
from ._refine import Objective, Refined, refine
from ._smoothing import SmoothTwin
from ._stages import Stages

STEPS = 1
"""Second-order steps for each fit: the next level goes on from there."""

PRODUCTS = 15
"""To find the direction that the message tells most of."""

WIDTHS = (0.3, 0.003)
"""Of the smooth twin's activations at the first and at the last level."""


def split(stages: Stages, energy: Denoised, start: Tensor, watch: Watch) -> Refined:
    """Half-quadratic splitting along falling levels τ: x ← argmin misfit + ‖x - D(x, τ)‖² / 2τ².

    A network with kinks is replaced by its smooth twin but in the last fit. The result is D of the
    last fit, nearer to the posterior's mean than to its mode. The start is kept where that explains
    the message worse than noise allows: by one unit of misfit for each entry of the inputs.
    """
    twin = SmoothTwin(stages.observation, WIDTHS[0])
    own = stages.objective(stages.observation)
    if energy.level is None:
        energy = replace(energy, level=_level(own, start, energy.start))
    inputs, levels = start, energy.levels()
    for number, level in enumerate(levels):
        twin.set_width(WIDTHS[0] * (WIDTHS[1] / WIDTHS[0]) ** (number / len(levels)))
        objective = own if number == len(levels) - 1 else stages.objective(twin.observation)
        near = Near(replace(energy, level=level).guess(inputs), level)
        refined = _fit(stages, replace(objective, energy=near), inputs, watch)
        inputs = refined.inputs
        if refined.status != FINISHED:
            return Refined(start, float(own(start)), refined.status)
    inputs = clamp(energy.guess(inputs), stages.observation.low, stages.observation.high)
    misfits = [float(stages.evidence.misfit(own.message(x))) for x in (inputs, start)]
    kept = inputs if misfits[0] - misfits[1] < inputs.numel() else start
    return Refined(kept, float(own(kept)))


def _fit(stages: Stages, objective: Objective, inputs: Tensor, watch: Watch) -> Refined:
    return refine(
        objective,
        inputs,
        steps=STEPS,
        products=stages.finish.products,
        low=stages.observation.low,
        high=stages.observation.high,
        watch=watch,
        tolerance=1e-3,
    )


def _level(objective: Objective, inputs: Tensor, start: float) -> float:
    """1 / √λ, λ the largest eigenvalue of the message's information here, by power iteration."""
    values, pull_back = vjp(objective.message, inputs)[:2]
    weight = objective.evidence.curvature(values.detach())
    row, value = torch.ones_like(inputs), 0.0
    for _ in range(PRODUCTS):
        row = row / row.norm()
        row = pull_back(weight * jvp(objective.message, (inputs,), (row,))[1])[0]
        value = float(row.norm())
        if not 0 < value < float("inf"):
            return start
    return float(value**-0.5)
