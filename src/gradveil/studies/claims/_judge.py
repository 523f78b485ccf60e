"""The statistical test behind every claim: paired differences, an interval, a verdict."""

from math import hypot, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from gradveil.scoring import MARGIN, AgainstGuess
from gradveil.studies.shared import Units, interval, nested

REPRODUCED, NOT_REPRODUCED, UNDECIDED = "reproduced", "not reproduced", "undecided"
NOT_TESTABLE = "not testable here"
"""Of a claim about what attacks find, where they find no more than a guess without a defense."""
NOT_TESTED, NOT_ASKED = "not tested", "-"
"""Of a claim that could be tested, but was not; and of one that a setting does not change."""
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, NOT_TESTABLE)

ONE_SEED = "one seed of the losses decides it"
NOT_UNDEFENDED = "the attack was not run without a defense, so what it is worth is not known"

MINIMUM_GROUPS = 6
"""Fewer independent pairs decide nothing: an interval of five draws is a guess at its own width."""


class Judgement(NamedTuple):
    """A verdict with the numbers behind it."""

    verdict: str
    mean: float | None
    """The mean difference; positive where the claim says so."""
    low: float | None
    high: float | None
    effect: float | None
    """The mean over the standard deviation of the groups' differences (Cohen's d_z)."""
    pairs: int
    """Pairs of cells, by batch and seed."""
    groups: int
    """Independent groups: batches, or seeds where all share one batch."""
    reason: str


def judge(units: Units, margin: float | None = None, half_width: float = 0.0) -> Judgement:
    """Test differences that are positive where a claim holds.

    Without a margin the claim is that the mean is above 0: reproduced if the whole 95 % interval
    is, not reproduced if the whole interval is below. With a margin the claim is that two things
    are similar, |mean| < margin: reproduced if the interval is inside, not reproduced if it is
    outside on one side. Anything else is undecided, and so is everything with too few groups;
    without any pair the claim is not tested.

    `half_width` is that of a 95 % interval of the mean for reasons that the units do not show; it
    is added as independent errors are: both ends move to √((end - mean)² + half_width²). Where it
    is infinite there is no interval, and nothing is decided.
    """
    groups = _groups(units)
    if not groups:
        return Judgement(NOT_TESTED, None, None, None, None, 0, 0, "no pairs that can be compared")
    if not all(bool(torch.isfinite(values).all()) for group in groups for values in group):
        reason = "a cell found a number that is not finite"
        return Judgement(UNDECIDED, None, None, None, None, len(units), len(groups), reason)
    means = torch.stack([torch.stack([v.mean() for v in group]).mean() for group in groups])
    if not isfinite(half_width):
        mean, effect = float(means.mean()), _effect(means)
        return Judgement(UNDECIDED, mean, None, None, effect, len(units), len(groups), ONE_SEED)
    verdict = UNDECIDED
    reason = f"{len(groups)} independent pairs; at least {MINIMUM_GROUPS} are needed"
    low, high = None, None
    if len(groups) > 1:
        mean_interval = interval(groups)
        mean, low, high = mean_interval.mean, mean_interval.low, mean_interval.high
        low, high = mean - hypot(mean - low, half_width), mean + hypot(high - mean, half_width)
        if len(groups) >= MINIMUM_GROUPS:
            verdict, reason = _verdict(low, high, margin)
    mean = float(means.mean())
    return Judgement(verdict, mean, low, high, _effect(means), len(units), len(groups), reason)


def withheld(judgement: Judgement, found: AgainstGuess | None) -> Judgement:
    """The judgement; none where its attack without a defense does not beat a blind guess.

    Nor where that attack was not run (`None`): nobody knows what it is worth.
    """
    if judgement.mean is None:
        return judgement
    if found is None:
        return judgement._replace(verdict=NOT_TESTED, reason=NOT_UNDEFENDED)
    if found.works:
        return judgement
    gain = found.gain
    reason = (
        f"without a defense the attack is {gain.mean:+.1f} [{gain.low:.1f}, {gain.high:.1f}] dB"
        f" below the error of a blank image, where {MARGIN:g} is asked for"
    )
    return judgement._replace(verdict=NOT_TESTABLE, reason=reason)


def _groups(units: Units) -> list[list[Tensor]]:
    groups = nested(units)
    return [[values] for values in groups[0]] if len(groups) == 1 else groups


def _verdict(low: float, high: float, margin: float | None) -> tuple[str, str]:
    if margin is None:
        if low > 0:
            return REPRODUCED, "the whole interval is on the claim's side"
        if high < 0:
            return NOT_REPRODUCED, "the whole interval is on the other side"
        return UNDECIDED, "no pair differs" if low == high == 0 else "the interval holds 0"
    if -margin < low and high < margin:
        return REPRODUCED, f"the whole interval is within ±{margin:g}"
    if low > margin or high < -margin:
        return NOT_REPRODUCED, f"the whole interval is beyond ±{margin:g}"
    return UNDECIDED, f"the interval is neither within nor beyond ±{margin:g}"


def _effect(means: Tensor) -> float | None:
    if len(means) < 2 or float(means.std()) == 0:
        return None
    return float(means.mean() / means.std())
