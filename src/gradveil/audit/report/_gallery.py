"""Pictures of the originals and of what was rebuilt."""

from collections.abc import Sequence
from typing import NamedTuple

from .._result import AttackResult, AuditResult, DefenseResult, Point
from ._facts import answered, attack_names, main_answer, strongest_leak
from ._numbers import number


class Picture(NamedTuple):
    """A PNG file in base64, with the text for who cannot see it and a caption."""

    png: str
    alt: str
    caption: str = ""


class Strip(NamedTuple):
    """One row of pictures."""

    label: str
    pictures: list[Picture]


MOST = 8
"""Pictures in a row of the first screen."""


def first_strips(result: AuditResult) -> list[Strip]:
    """The originals, rebuilt without a defense and under the answer; none without pictures."""
    frontier, answer = result.frontier, main_answer(result.frontier)
    found = answered(frontier, answer)
    rows = [_first("no defense", "Rebuilt without a defense", frontier.undefended)]
    if answer and found:
        missed = "" if answer.reached else " (goal missed)"
        rows.append(_first(answer.name, f"Rebuilt under {answer.name}{missed}", found[1]))
    rebuilt = [strip for strip in rows if strip.pictures]
    if not rebuilt or not result.originals:
        return []
    return [Strip("The originals", _pictures(result.originals[:MOST])), *rebuilt]


def _first(name: str, title: str, point: Point) -> Strip:
    leak = strongest_leak(point)
    if leak is None:
        return Strip(title, [])
    psnr = f", {number(leak.psnr.mean)} dB" if leak.psnr else ""
    rebuilt = _pictures(leak.pictures[:MOST], f" as it was rebuilt under {name}")
    return Strip(f"{title}, round {leak.round}{psnr}", rebuilt)


def _pictures(pngs: Sequence[str], how: str = "") -> list[Picture]:
    return [Picture(png, f"Original {place}{how}") for place, png in enumerate(pngs, start=1)]


def gallery(result: AuditResult) -> dict[str, list[Strip]]:
    """The originals and what each attack made of them, for each defense that has pictures."""
    names, originals = attack_names(result), Strip("original", _pictures(result.originals))
    strips = {
        defense.name: [_strip(defense, attack, names[attack.attack]) for attack in defense.attacks]
        for defense in result.defenses
    }
    shown = {name: [one for one in rows if one.pictures] for name, rows in strips.items()}
    return {name: [originals, *rows] for name, rows in shown.items() if rows}


def _strip(defense: DefenseResult, attack: AttackResult, name: str) -> Strip:
    run = next((run for run in attack.runs if run.pictures), None)
    if run is None:
        return Strip(name, [])
    bare = _pictures(run.pictures, f" as {name} rebuilt it under {defense.name}")
    if run.psnr is None:
        return Strip(name, bare)
    rated = zip(bare, map(number, run.psnr), strict=False)
    return Strip(name, [Picture(png, f"{alt}, {psnr} dB", psnr) for (png, alt, _), psnr in rated])
