"""Pictures of the originals and of what was rebuilt."""

from collections.abc import Sequence
from typing import NamedTuple

from .._result import AuditResult
from ._numbers import number
from ._tables import attack_names

MOST = 8
"""Pictures in a row of the first screen."""


class Strip(NamedTuple):
    """One row of pictures in the order of the originals."""

    label: str
    pngs: Sequence[str]
    """PNG files in base64."""
    how: str = ""
    """They were rebuilt, for who cannot see them."""
    captions: Sequence[str] = ()
    """Decibels, where they are shown."""


def first_strips(result: AuditResult) -> list[Strip]:
    """The originals, rebuilt without a defense and under the answer; none without pictures."""
    frontier, answer = result.frontier, result.frontier.main
    rows = [("no defense", "without a defense", frontier.undefended)]
    if answer and (found := frontier.setting(answer)):
        missed = "" if answer.reached else " (goal missed)"
        rows.append((answer.name, f"under {answer.name}{missed}", found[1]))
    rebuilt = []
    for name, where, point in rows:
        if (leak := point.strongest) and leak.pictures:
            psnr = f", {number(leak.psnr.mean)} dB" if leak.psnr else ""
            label = f"Rebuilt {where}, round {leak.round}{psnr}"
            rebuilt.append(Strip(label, leak.pictures[:MOST], f" as it was rebuilt under {name}"))
    if not rebuilt or not result.originals:
        return []
    return [Strip("The originals", result.originals[:MOST]), *rebuilt]


def gallery(result: AuditResult) -> dict[str, list[Strip]]:
    """The originals and what each attack made of them, for each defense that has pictures."""
    names, found = attack_names(result), {}
    for defense in result.defenses:
        strips = [Strip("original", result.originals)]
        for attack in defense.attacks:
            name, run = names[attack.attack], attack.runs[0]
            how = f" as {name} rebuilt it under {defense.name}"
            strips += [Strip(name, run.pictures, how, [*map(number, run.psnr or ())])]
        if any(strip.pngs for strip in strips[1:]):
            found[defense.name] = [strip for strip in strips if strip.pngs]
    return found
