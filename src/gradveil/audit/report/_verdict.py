"""One sentence for a reader without the theory, made from what was measured and nothing else."""

from collections.abc import Sequence

from gradveil.catalog import shown_name
from gradveil.scoring import CANNOT_JUDGE

from .._result import AttackResult, BoundResult, ToldApart
from ._numbers import percent

COPY, RECOGNISABLE, NOTHING = 0.1, 0.4, 0.9
"""Squared error over that of a guess (the mean of public examples): up to `COPY` an image counts as
a near copy, up to `RECOGNISABLE` as recognisable, from `NOTHING` on as no further than the guess,
in between as blurred. On MNIST a guess has about 12 dB, so these are about 22, 16 and 12 dB."""

KNOWS_MORE = "An attacker who knows more about the data may get further."
"""What follows `no_further`: attacks without public examples say nothing of one who has them."""


def no_further(strongest: str) -> str:
    """All that may be said where no attack that was run, the strongest named, beats a blind guess.

    >>> no_further("adaptive")
    'the attacks that were run (the strongest: adaptive) got no further than a blind guess'
    """
    return (
        f"the attacks that were run (the strongest: {strongest}) got no further than a blind guess"
    )


def verdict(
    attacks: Sequence[AttackResult],
    guess_error: float,
    bound: BoundResult | None,
    is_image: bool,
    no_guarantee: str = "",
    *,
    able: bool = True,
    told: ToldApart | None = None,
) -> str:
    """What the strongest attack found in this run, and what is guaranteed beyond it.

    Where the attacks cannot judge, that they got no further is no merit of the defense, and what
    the exact attacker tells apart is said instead.

    Args:
        attacks: What was run on the defense.
        guess_error: The mean squared error in [0, 1] units of guessing the mean.
        bound: What the theory says.
        is_image: Whether the words may speak of images.
        no_guarantee: Why the theory promises nothing, where it does not.
        able: Whether the attacks can judge this model.
        told: What the exact attacker found.
    """
    promise = _guarantee(bound, no_guarantee, guess_error, is_image)
    if not attacks:
        return f"Not attacked in this run. {promise}"
    if not able:
        return (
            f"{_capital(CANNOT_JUDGE)}: without a defense they are no better than a blind guess."
            f" {_told(told, is_image)} {promise}"
        )
    best = min(attacks, key=lambda attack: attack.mse_pixels.mean)
    ratio = best.mse_pixels.mean / max(guess_error, 1e-12)
    level, copies = grade(ratio), _copies(best, guess_error)
    if level == "nothing" and not copies:
        named = f"{shown_name(best.attack)}, {_numbers(best, ratio)}"
        return f"{_capital(no_further(named))}. {KNOWS_MORE} {promise}"
    outcome = _outcome(level, is_image) + ("" if level == "copy" else copies)
    who = "which knows the defense" if best.knows_defense else "which does not know the defense"
    only = " A stronger one may find more." if level in ("blurred", "nothing") else ""
    return (
        f"The strongest attack of this run, {who}, {outcome} ({_numbers(best, ratio)}).{only}"
        f" {promise}"
    )


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _outcome(level: str, is_image: bool) -> str:
    return {
        "copy": ("rebuilt near copies of the images", "rebuilt near copies of the values"),
        "recognisable": ("recovered recognisable images", "recovered much of the values"),
        "blurred": ("recovered blurred or partial images", "recovered some values"),
        "nothing": ("got in the mean no further than a blind guess",) * 2,
    }[level][0 if is_image else 1]


def _told(told: ToldApart | None, is_image: bool) -> str:
    """What remains to judge by."""
    if told is None:
        return "Nothing was measured that could."
    return (
        f"Judge by who is picked out: an attacker who knows the other"
        f" {'images' if is_image else 'examples'} of the batch picks the right one of"
        f" {told.candidates} candidates in {percent(told.rate.mean)} of the trials (chance:"
        f" {percent(told.chance)})."
    )


def _copies(attack: AttackResult, guess_error: float) -> str:
    """A mean hides the one example that was rebuilt."""
    errors = [error for run in attack.runs for error in run.mse_pixels]
    copies = sum(error <= COPY * guess_error for error in errors)
    return f", among them near copies of {copies} of {len(errors)}" if copies else ""


def grade(ratio: float) -> str:
    """ "copy", "recognisable", "blurred" or "nothing", from the error over that of a guess."""
    for name, limit in (("copy", COPY), ("recognisable", RECOGNISABLE), ("blurred", NOTHING)):
        if ratio <= limit:
            return name
    return "nothing"


def _numbers(attack: AttackResult, ratio: float) -> str:
    share = f"{100 * ratio:.0f} % of the error of guessing the mean"
    return share if attack.psnr is None else f"{attack.psnr.mean:.1f} dB, {share}"


def _guarantee(bound: BoundResult | None, reason: str, guess_error: float, is_image: bool) -> str:
    if bound is None or not bound.holds:
        return f"Nothing is guaranteed: {reason}." if reason else "Nothing is guaranteed."
    what = "images" if is_image else "values"
    text = (
        f"Its Gaussian reference error is {bound.mse:.2g} per entry: a limit if the data were"
        f" Gaussian, not a guarantee for {what}"
    )
    if not excludes_copies(bound, guess_error):
        text += f"; it does not exclude near copies of the {what}"
    return f"{text}."


def excludes_copies(bound: BoundResult | None, guess_error: float) -> bool:
    """Whether a reference error, where there is one that holds, is above that of near copies."""
    known = bound is not None and bound.holds and bound.mse_pixels is not None
    return not known or bound.mse_pixels > COPY * guess_error  # type: ignore[union-attr,operator]
