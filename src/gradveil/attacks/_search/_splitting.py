"""The finish with a denoiser: the message's best fit near what it makes of the image, again."""

from dataclasses import replace

from torch import Tensor

from .._evidence import Denoised, Near
from .._reconstruction import FINISHED
from ._optimise import Watch
from ._refine import Refined, refine
from ._smoothing import SmoothTwin
from ._stages import Stages

STEPS = 1
"""Second-order steps for each fit: the next level goes on from there."""

WIDTHS = (0.3, 0.003)
"""Of the smooth twin's activations at the first and at the last level."""


def split(stages: Stages, energy: Denoised, start: Tensor, watch: Watch) -> Refined:
    """Half-quadratic splitting along falling levels τ: x ← argmin misfit + ‖x - D(x, τ)‖² / 2τ².

    A network with kinks is replaced by its smooth twin but in the last fit. The result is never
    worse than the start, by the misfit and the energy at the last level.
    """
    twin = SmoothTwin(stages.observation, WIDTHS[0])
    own = stages.objective(stages.observation)
    best = Refined(start, float(own(start)))
    inputs, levels = start, energy.levels()
    for number, level in enumerate(levels):
        twin.set_width(WIDTHS[0] * (WIDTHS[1] / WIDTHS[0]) ** (number / len(levels)))
        last = number == len(levels) - 1
        objective = own if last else stages.objective(twin.observation)
        near = Near(replace(energy, level=level).guess(inputs), level)
        refined = refine(
            replace(objective, energy=near),
            inputs,
            steps=STEPS,
            products=stages.finish.products,
            low=stages.observation.low,
            high=stages.observation.high,
            watch=watch,
            tolerance=1e-3,
        )
        inputs = refined.inputs
        if refined.status != FINISHED:
            return Refined(best.inputs, best.cost, refined.status)
    cost = float(own(inputs))
    return Refined(inputs, cost) if cost < best.cost else best
