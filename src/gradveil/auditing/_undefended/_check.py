"""Compares the attacks on the undefended message with the blind guess, paired by example."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from gradveil._random import numbered_stream
from gradveil.catalog import shown_name
from gradveil.scoring import (
    CANNOT_JUDGE,
    MARGIN,
    AgainstGuess,
    Nested,
    against_guess,
    gain_over_guess,
)

from ._guess import BlindGuess
from ._outcome import Undefended

if TYPE_CHECKING:
    from gradveil.auditing._result import AttackResult, RunResult

Nest = Callable[["Sequence[RunResult]", "Callable[[RunResult], tuple[float, ...]]"], Nested]


def beats_guess(attack: "AttackResult", guess: BlindGuess, nest: Nest) -> AgainstGuess:
    """The attack's errors beside the guess's; `nest` groups the runs by batch and seed."""

    def gains(run: "RunResult") -> tuple[float, ...]:
        errors = torch.tensor(run.mse_pixels)
        first = run.batch * len(errors)
        guessed = guess.errors[first : first + len(errors)].cpu()
        return tuple(gain_over_guess(errors, guessed).tolist())

    return against_guess(nest(attack.runs, gains), numbered_stream(0))


def check_undefended(
    attacks: "Sequence[AttackResult]", guess: BlindGuess, nest: Nest
) -> Undefended | None:
    """The strongest of the attacks, and whether it can judge; `None` without any."""
    rated = [(attack, beats_guess(attack, guess, nest)) for attack in attacks]
    if not rated:
        return None
    best, found = max(rated, key=lambda pair: (pair[1].works, pair[1].gain.mean))
    errors = guess.errors.double().clamp(min=1e-12)
    psnr = None if best.psnr is None else float((-10 * errors.log10()).mean())
    return Undefended(
        attack=best.attack,
        mse_pixels=best.mse_pixels,
        psnr=best.psnr,
        guess=guess.name,
        guess_mse_pixels=float(errors.mean()),
        guess_psnr=psnr,
        gain=found.gain,
        copies=found.copies,
        examples=found.examples,
        can_judge=found.works,
        sentence=_sentence(best, guess, found, psnr),
    )


def _sentence(
    attack: "AttackResult", guess: BlindGuess, found: AgainstGuess, psnr: float | None
) -> str:
    ours, its = f"{guess.unit} {attack.mse_pixels.mean:.2g}", f"{float(guess.errors.mean()):.2g}"
    each = "example by example"
    if attack.psnr is not None and psnr is not None:
        ours, its, each = f"{attack.psnr.mean:.1f} dB", f"{psnr:.1f} dB", "image by image"
    gain = found.gain
    ends = "" if gain.low == gain.high else f" [{gain.low:.1f}, {gain.high:.1f}]"
    numbers = (
        f"ithout a defense the strongest attack, {shown_name(attack.attack)}, reaches {ours} and a"
        f" blind guess ({guess.name}) {its}: {gain.mean:+.1f}{ends} dB, {each}"
    )
    if found.works:
        return f"W{numbers}."
    return (
        f"{CANNOT_JUDGE[0].upper()}{CANNOT_JUDGE[1:]}: w{numbers}. At least {MARGIN:g} dB in the"
        " mean and an interval above 0 are needed, or a near copy."
    )
