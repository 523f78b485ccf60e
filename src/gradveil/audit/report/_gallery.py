"""Pictures of the originals and of what was rebuilt, and noise by layer."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .._result import AttackResult, AuditResult, DefenseResult, LayerResult, Point
from ._facts import answered, attack_names, families, main_answer, strongest_leak
from ._numbers import number, share


class Picture(NamedTuple):
    """A PNG file in base64, with the text for who cannot see it and a caption."""

    png: str
    alt: str
    caption: str = ""


class Strip(NamedTuple):
    """One row of pictures."""

    label: str
    pictures: list[Picture]


class Shown(NamedTuple):
    """One defense: the originals and, below them, what each attack made of its message."""

    name: str
    strips: list[Strip]


class Heat(NamedTuple):
    """One cell of the layer table: its texts and how strong its colour is, in [0, 1]."""

    noise: str
    kept: str
    level: float


class LayerRow(NamedTuple):
    """One tensor of the message under each defense."""

    name: str
    size: int
    cells: list[Heat | None]


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


def gallery(result: AuditResult) -> list[list[Shown]]:
    """The defenses that have pictures, twins together."""
    groups = ([_shown(result, d) for d in group] for group in families(result.defenses))
    pictured = ([s for s in group if len(s.strips) > 1] for group in groups)
    return [group for group in pictured if group]


def _shown(result: AuditResult, defense: DefenseResult) -> Shown:
    names = attack_names(result)
    originals = Strip("original", _pictures(result.originals))
    strips = [_strip(defense, attack, names[attack.attack]) for attack in defense.attacks]
    return Shown(defense.name, [originals, *(strip for strip in strips if strip.pictures)])


def _strip(defense: DefenseResult, attack: AttackResult, name: str) -> Strip:
    run = next((run for run in attack.runs if run.pictures), None)
    if run is None:
        return Strip(name, [])
    bare = _pictures(run.pictures, f" as {name} rebuilt it under {defense.name}")
    if run.psnr is None:
        return Strip(name, bare)
    rated = zip(bare, map(number, run.psnr), strict=False)
    return Strip(name, [Picture(png, f"{alt}, {psnr} dB", psnr) for (png, alt, _), psnr in rated])


def layer_table(result: AuditResult) -> list[LayerRow]:
    """Each tensor's noise (coloured on a logarithmic scale) and share of entries sent."""
    layers = {d.name: {layer.name: layer for layer in d.layers} for d in result.defenses}
    sizes = {name: layer.size for by_name in layers.values() for name, layer in by_name.items()}
    noises = [la.noise for d in result.defenses for la in d.layers if 0 < la.noise < math.inf]
    span = (min(noises), max(noises)) if noises else (1.0, 1.0)
    return [
        LayerRow(name, size, [_heat(layers[d.name].get(name), span) for d in result.defenses])
        for name, size in sizes.items()
    ]


def _heat(layer: LayerResult | None, span: tuple[float, float]) -> Heat | None:
    if layer is None:
        return None
    low, high = span
    level = 0.0
    if 0 < layer.noise < math.inf:
        place = math.log(layer.noise / low) / math.log(high / low) if high > low else 1.0
        level = 0.12 + 0.88 * place
    kept = "" if layer.kept >= 1 else f"{share(layer.kept)} sent"
    return Heat(number(layer.noise) if layer.noise > 0 else "no noise", kept, round(level, 3))
