"""The originals, what was rebuilt without a defense, and what under the recommended one."""

from gradveil.auditing._frontier import Frontier, Point
from gradveil.auditing._result import AuditResult

from .._gallery import Picture, Strip
from .._numbers import number
from ._facts import answered, main_answer, pictured_leak

MOST = 8
"""Pictures in a row of the first screen."""


def first_strips(result: AuditResult, frontier: Frontier) -> list[Strip]:
    """Three rows of pictures; none where nothing was kept."""
    originals = _pictures(result.originals, "Original {}")
    rows = [Strip("The originals", originals)]
    rows += _strip("no defense", "Rebuilt without a defense", frontier.undefended)
    answer = main_answer(frontier)
    found = answered(frontier, answer)
    if answer and found:
        title = f"Rebuilt under {answer.name}"
        rows += _strip(answer.name, title if answer.reached else f"{title} (goal missed)", found[1])
    return rows if originals and len(rows) > 1 else []


def _strip(name: str, title: str, point: Point) -> list[Strip]:
    leak = pictured_leak(point)
    if leak is None:
        return []
    psnr = f", {number(leak.psnr.mean)} dB" if leak.psnr else ""
    alt = f"Original {{}} as it was rebuilt under {name}"
    return [Strip(f"{title}, round {leak.round}{psnr}", _pictures(leak.pictures, alt))]


def _pictures(pngs: tuple[str, ...], alt: str) -> tuple[Picture, ...]:
    return tuple(Picture(png, alt.format(i)) for i, png in enumerate(pngs[:MOST], start=1))
