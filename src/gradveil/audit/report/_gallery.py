"""Pictures of the originals and of what was rebuilt."""

from collections.abc import Sequence
from typing import NamedTuple

from .._result import AuditResult
from ._numbers import number
from ._tables import attack_names

MOST = 8
"""Pictures in a row of the first screen."""


class Picture(NamedTuple):
    """A PNG file in base64, with the text for who cannot see it and a caption."""

    png: str
    alt: str
    caption: str = ""


class Strip(NamedTuple):
    """One row of pictures."""

    label: str
    pictures: list[Picture]


def _strip(
    label: str, pngs: Sequence[str], how: str = "", decibels: Sequence[float] | None = None
) -> Strip:
    """Pictures in the order of the originals, and how they were rebuilt."""
    captions = [number(value) for value in decibels or ()] or [""] * len(pngs)
    alts = [f"Original {place}{how}" for place in range(1, len(pngs) + 1)]
    pairs = zip(pngs, alts, captions, strict=False)
    return Strip(label, [Picture(p, f"{a}, {c} dB" if c else a, c) for p, a, c in pairs])


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
            rebuilt.append(_strip(label, leak.pictures[:MOST], f" as it was rebuilt under {name}"))
    if not rebuilt or not result.originals:
        return []
    return [_strip("The originals", result.originals[:MOST]), *rebuilt]


def gallery(result: AuditResult) -> dict[str, list[Strip]]:
    """The originals and what each attack made of them, for each defense that has pictures."""
    names, found = attack_names(result), {}
    for defense in result.defenses:
        strips = [
            _strip(name, run.pictures, f" as {name} rebuilt it under {defense.name}", run.psnr)
            for attack in defense.attacks
            for name, run in ((names[attack.attack], attack.runs[0]),)
            if run.pictures
        ]
        if strips:
            found[defense.name] = [_strip("original", result.originals), *strips]
    return found
