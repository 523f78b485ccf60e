"""Pictures of the originals and of what was rebuilt."""

import math
from dataclasses import dataclass

from .._result import (
    AttackResult,
    AuditResult,
    DefenseResult,
    Frontier,
    LayerResult,
    Point,
    RunResult,
)
from ._facts import answered, main_answer, pictured_leak
from ._numbers import number, percent
from ._style import attack_names, families


@dataclass(frozen=True)
class Picture:
    """A PNG file in base64, with the text for who cannot see it and a caption."""

    png: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Strip:
    """One row of pictures."""

    label: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Shown:
    """One defense: the originals and, below them, what each attack made of its message."""

    name: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True)
class Heat:
    """One cell of the layer table: its texts and how strong its colour is, in [0, 1]."""

    noise: str
    kept: str
    level: float


@dataclass(frozen=True)
class LayerRow:
    """One tensor of the message under each defense."""

    name: str
    size: int
    cells: tuple[Heat | None, ...]


def gallery(result: AuditResult) -> list[list[Shown]]:
    """The defenses that have pictures, twins together."""
    groups = ([_shown(result, d) for d in group] for group in families(result))
    pictured = ([s for s in group if len(s.strips) > 1] for group in groups)
    return [group for group in pictured if group]


def layer_table(result: AuditResult) -> list[LayerRow]:
    """Each tensor's noise (coloured on a logarithmic scale) and share of entries sent."""
    layers = {d.name: {layer.name: layer for layer in d.layers} for d in result.defenses}
    sizes = {name: layer.size for by_name in layers.values() for name, layer in by_name.items()}
    noises = [la.noise for d in result.defenses for la in d.layers if 0 < la.noise < math.inf]
    span = (min(noises), max(noises)) if noises else (1.0, 1.0)
    return [
        LayerRow(name, size, tuple(_heat(layers[d.name].get(name), span) for d in result.defenses))
        for name, size in sizes.items()
    ]


def _shown(result: AuditResult, defense: DefenseResult) -> Shown:
    originals = tuple(
        Picture(png, f"Original {place}") for place, png in enumerate(result.originals, start=1)
    )
    names = attack_names(result)
    strips = [_strip(defense, attack, names[attack.attack]) for attack in defense.attacks]
    return Shown(defense.name, (Strip("original", originals), *(s for s in strips if s)))


def _strip(defense: DefenseResult, attack: AttackResult, name: str) -> Strip | None:
    run = next((run for run in attack.runs if run.pictures), None)
    if run is None:
        return None
    pictures = []
    for place, png in enumerate(run.pictures):
        quality = _quality(run, place)
        alt = f"Original {place + 1} as {name} rebuilt it under {defense.name}"
        pictures.append(Picture(png, f"{alt}, {quality} dB" if quality else alt, quality))
    return Strip(name, tuple(pictures))


def _quality(run: RunResult, place: int) -> str:
    return number(run.psnr[place]) if run.psnr and place < len(run.psnr) else ""


def _heat(layer: LayerResult | None, span: tuple[float, float]) -> Heat | None:
    if layer is None:
        return None
    low, high = span
    level = 0.0
    if 0 < layer.noise < math.inf:
        share = math.log(layer.noise / low) / math.log(high / low) if high > low else 1.0
        level = 0.12 + 0.88 * share
    kept = "" if layer.kept >= 1 else f"{percent(layer.kept)} sent"
    return Heat(number(layer.noise) if layer.noise > 0 else "no noise", kept, round(level, 3))


MOST = 8
"""Pictures in a row of the first screen."""


def first_strips(result: AuditResult, frontier: Frontier) -> list[Strip]:
    """Three rows of pictures; none where nothing was kept."""
    originals = _pictures(result.originals, "Original {}")
    rows = [Strip("The originals", originals)]
    rows += _first_strip("no defense", "Rebuilt without a defense", frontier.undefended)
    answer = main_answer(frontier)
    found = answered(frontier, answer)
    if answer and found:
        title = f"Rebuilt under {answer.name}"
        rows += _first_strip(
            answer.name, title if answer.reached else f"{title} (goal missed)", found[1]
        )
    return rows if originals and len(rows) > 1 else []


def _first_strip(name: str, title: str, point: Point) -> list[Strip]:
    leak = pictured_leak(point)
    if leak is None:
        return []
    psnr = f", {number(leak.psnr.mean)} dB" if leak.psnr else ""
    alt = f"Original {{}} as it was rebuilt under {name}"
    return [Strip(f"{title}, round {leak.round}{psnr}", _pictures(leak.pictures, alt))]


def _pictures(pngs: tuple[str, ...], alt: str) -> tuple[Picture, ...]:
    return tuple(Picture(png, alt.format(i)) for i, png in enumerate(pngs[:MOST], start=1))
