"""Amounts of noise and pruning at which a step of the audit's training gains a given decrease."""

from torch import Tensor

from gradveil._tensors import flatten
from gradveil.mechanisms import AnyMechanism, Mechanism
from gradveil.sensitivity import Moments
from gradveil.theory import expected_decrease

from .._defaults import RATE

STEPS = 40
"""Of the bisection; a scale is given with six digits."""


def gain_of_a_step(moments: Moments, mechanism: AnyMechanism) -> float:
    """What a step of Adam, with the rate of the audit's training, is expected to gain."""
    return expected_decrease(moments, mechanism, RATE, "adam")


def scale_for(gain: float, planned: Mechanism, moments: Moments) -> float:
    """The scale of the noise at which a step gains that much; `planned` is its plan at scale 1.

    Standard deviations are proportional to the scale, and the gain falls with it.
    """
    if gain_of_a_step(moments, _with_noise(planned, 0.0)) < gain:
        raise ValueError(
            "Parameter `match` should be one that these defenses can meet. Found match='training'"
            " and a defense under which a step gains less than under the reference noise although"
            " it has no noise yet. Give a larger `scale`, or prune less."
        )
    low, high = 0.0, 1.0
    while gain_of_a_step(moments, _with_noise(planned, high)) > gain and high < 1e12:
        low, high = high, 10 * high
    for _ in range(STEPS):
        middle = (low + high) / 2
        short = gain_of_a_step(moments, _with_noise(planned, middle)) < gain
        low, high = (low, middle) if short else (middle, high)
    return float(f"{(low + high) / 2:.6g}")


def ratio_for(gain: float, scores: Tensor, moments: Moments) -> float:
    """The largest ratio at which a step still gains that much, to whole entries; low scores stay.

    Without noise Adam takes a step of the same length along every entry that is sent, which gains
    Σ_kept |g_i|.
    """
    order = scores.argsort(stable=True)
    gains = RATE * flatten(moments.squared_values).double().sqrt()[order].cumsum(0)
    kept = int((gains < gain).sum()) + 1
    return 1 - min(kept, moments.size) / moments.size


def _with_noise(planned: Mechanism, factor: float) -> Mechanism:
    assert isinstance(planned.std, dict)
    std = {name: factor * level for name, level in planned.std.items()}
    return Mechanism(std, planned.keep, planned.clip)
