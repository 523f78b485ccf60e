"""The tables, for the report and the chart's marks, each described once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradveil.attacks import FINISHED
from gradveil.catalog import shown_name
from gradveil.scoring import Interval

from .._result import (
    AttackResult,
    AuditResult,
    BoundResult,
    Curve,
    DefenseResult,
    Frontier,
    LayerResult,
    Point,
)
from ._words import ABSENT, interval, named, number, plural, setting, share


@dataclass(frozen=True)
class Cell:
    """A text, the value behind it (`None` sorts last), and a smaller second line."""

    text: str
    value: float | str | None = None
    note: str = ""
    unproved: bool = False
    """Whether it says that there is no guarantee."""


UNPROVED, EMPTY = Cell("no guarantee", unproved=True), Cell(ABSENT)


@dataclass(frozen=True)
class Column:
    """A heading, with its unit or a hint on a second line."""

    label: str
    hint: str = ""
    words: bool = False
    """Whether its cells hold words rather than numbers."""
    brief: bool = True
    """Whether it is shown where there is little room: on paper."""
    notes: bool = True
    """Whether there is room for the notes of its cells there."""


Row = dict[Column, Cell | None]
"""What is said of one item, its heading first."""


@dataclass(frozen=True)
class Table:
    """Rows whose first cell is their heading."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def _table(name: str, caption: str, rows: Sequence[Row]) -> Table:
    """A table of these rows; a column of which no row says anything is left out."""
    shown = [column for column in rows[0] if any(row[column] for row in rows)] if rows else []
    cells = tuple(tuple(row[column] or EMPTY for column in shown) for row in rows)
    return Table(name, caption, tuple(shown), cells)


def summary_table(result: AuditResult) -> Table:
    """One row for each defense: what it keeps, what is proved about it, what it costs."""
    rows = [_summary_row(result, defense) for defense in result.defenses]
    return _table("summary", "What each defense keeps, guarantees and costs", rows)


def _summary_row(result: AuditResult, defense: DefenseResult) -> Row:
    bound = defense.bound
    prior, plan, decibels, trace = ABSENT, ABSENT, UNPROVED, UNPROVED
    if bound is not None:
        prior, plan = bound.prior, "yes" if bound.counts_plan else "no"
        decibels, trace = _number(bound.mse_decibels), _number(bound.trace_mse)
    return {
        Column("Defense", words=True): _words(defense.name, setting(defense.defense)),
        Column("Signal kept", "U1; 1 is all"): _number(defense.utility_first),
        Column("Noise", "U2; 0 is none"): _number(defense.utility_second),
        Column("Reference error", "theory, per entry", notes=False): _bound(bound),
        Column("In decibels", "of the mean error", brief=False): (
            decibels if result.setup.is_image else None
        ),
        Column("Simple form", "trace; per entry", brief=False): trace,
        Column("A limit for", "data that are", True, False): _words(prior),
        Column("Counts noise levels", "what they reveal", True, False): _words(plan),
        **_privacy(result, defense),
        Column("Formal privacy", words=True, brief=False): _words(defense.formal_privacy),
        Column("Message", "size"): Cell(
            f"{number(defense.bytes_sent / 1000)} kB", float(defense.bytes_sent)
        ),
        Column("Time", "× undefended"): Cell(f"{number(defense.time_ratio)} ×", defense.time_ratio),
    }


def _privacy(result: AuditResult, defense: DefenseResult) -> Row:
    """What is stated of ε and recognition; of nothing where no defense states it."""
    stated = next((d.privacy for d in result.defenses if d.privacy), None)
    if stated is None:
        return {}
    releases, one, cells = result.setup.releases, defense.privacy, [UNPROVED] * 3
    rate = releases.sample_rate
    if one is not None:
        most = f"{share(one.recognition_rounds)} with all rounds"
        cells = [
            replace(_number(one.epsilon), note=one.hides),
            _number(one.epsilon_rounds),
            Cell(share(one.recognition), one.recognition, most),
        ]
    sampling = "all in all" if rate == 1 else f"Poisson sampling at {number(rate)}"
    columns = (
        Column("ε, one message", f"δ = {releases.delta:g}, secret noise", notes=False),
        Column(f"ε, {plural(releases.rounds, 'round')}", sampling),
        Column("Recognised at most", f"of {stated.candidates}, one message", notes=False),
    )
    return dict(zip(columns, cells, strict=True))


def _bound(bound: BoundResult | None) -> Cell:
    if bound is None:
        return UNPROVED
    spread = f" ± {number(bound.mse_standard_error)}" if bound.mse_standard_error else ""
    ends = bound.mse_interval
    within = f" ({number(ends[0])} to {number(ends[1])})" if ends else ""
    note = f"{bound.method}{spread}, over {plural(bound.batches, 'batch')}{within}"
    found = replace(_number(bound.mse), note=note)
    if bound.holds:
        return found
    return replace(found, text=f"{found.text} †", note=f"{found.note}, no guarantee here")


def rounds_table(result: AuditResult) -> Table:
    """The error left at each moment of the training: without a defense, and for each answer."""
    frontier = result.frontier
    shown = {"no defense": frontier.undefended}
    for answer in frontier.answers:
        if found := frontier.setting(answer):
            shown[named(found[0].name, found[1].defense)] = found[1]
    rows: list[Row] = []
    for name, point in shown.items():
        errors = {leak.round: leak.error for leak in point.leaks}
        moments = {
            Column(f"Round {m}", "error left"): _share(errors.get(m)) for m in frontier.moments
        }
        rows.append({Column("Defense", words=True): _words(name), **moments})
    caption = "What the strongest attack leaves to guess, over the rounds of a training"
    return _table("rounds", caption, rows)


def attack_names(result: AuditResult) -> dict[str, str]:
    """A short name for each attack's specification: without arguments where that is unique."""
    specs = list(dict.fromkeys(a.attack for d in result.defenses for a in d.attacks))
    short = [shown_name(spec) for spec in specs]
    return {s: n if short.count(n) == 1 else s for s, n in zip(specs, short, strict=True)}


def attackers(result: AuditResult) -> dict[bool, list[str]]:
    """The names of the attacks that know the defense, and of those that do not."""
    names = attack_names(result)
    knows = {a.attack: a.knows_defense for d in result.defenses for a in d.attacks}
    return {aware: [names[a] for a in knows if knows[a] is aware] for aware in (True, False)}


def attack_table(result: AuditResult) -> Table:
    """One row for each defense and attack."""
    rows = [_attack_row(result, d, attack) for d in result.defenses for attack in d.attacks]
    return _table("attacks", "What each attack reached", rows)


def _attack_row(result: AuditResult, defense: DefenseResult, attack: AttackResult) -> Row:
    setup, runs = result.setup, len(attack.runs)
    labels = Cell(share(attack.label_accuracy), attack.label_accuracy)
    ends = [run.status for run in attack.runs if run.status != FINISHED]
    others = ", ".join(f"{ends.count(status)} {status}" for status in dict.fromkeys(ends))
    found = "Tokens found" if setup.tokens else "Columns found"
    return {
        Column("Defense", words=True): _words(defense.name),
        Column("Attack", words=True): _words(attack_names(result)[attack.attack]),
        Column("Aware", "of the defense"): _words("yes" if attack.knows_defense else "no"),
        Column("Error", "share wrong" if setup.tokens else "squared, per entry"): (
            _estimate(attack.mse)
        ),
        Column("PSNR", "dB"): _estimate(attack.psnr) if attack.psnr else None,
        Column("SSIM", notes=False): _estimate(attack.ssim) if attack.ssim else None,
        Column(found): _share(attack.accuracy) if attack.accuracy else None,
        Column("Labels found"): labels if setup.threat.labels != "known" else None,
        Column("Seconds", "per batch", brief=False): _number(attack.seconds),
        Column("Runs", brief=False): Cell(str(runs), float(runs), others),
    }


def layer_table(result: AuditResult) -> Table:
    """One row for each tensor of the message: its noise and the share sent, by defense."""
    sizes = {layer.name: layer.size for d in result.defenses for layer in d.layers}
    rows: list[Row] = []
    for name, entries in sizes.items():
        row: Row = {Column("Tensor", words=True): _words(name, plural(entries, "entry"))}
        for defense in result.defenses:
            layers = {layer.name: layer for layer in defense.layers}
            row[Column(defense.name)] = _layer(layers[name]) if name in layers else None
        rows.append(row)
    return _table("layers", "Noise and share sent, by tensor and defense", rows)


def _layer(layer: LayerResult) -> Cell:
    noise = number(layer.noise) if layer.noise else "no noise"
    return Cell(noise, layer.noise, "" if layer.kept >= 1 else f"{share(layer.kept)} sent")


def points_table(result: AuditResult) -> Table:
    """One row for each defense and strength, the undefended message first."""
    rows = [point_row(result, curve, point) for curve, point in result.frontier.points()]
    caption = "Every defense at every strength: what leaks, and what training loses"
    return _table("points", caption, rows)


SHORTER = {"noise_multiplier": "multiplier"}
"""Names of amounts that are too long for a column."""


def point_row(result: AuditResult, curve: Curve, point: Point) -> Row:
    """What leaks at one strength, and what it costs."""
    frontier, leak, told = result.frontier, point.strongest, point.told_apart
    known = told or next((t for _, p in frontier.points() if (t := p.told_apart)), None)
    alike = " of its class" if known and known.one_class else ""
    picked = f"right one of {known.candidates}{alike}" if known else ""
    rate = EMPTY if known else None
    if told is not None:
        rate = _share(told.rate)
        rate = replace(rate, note=f"{rate.note}, {number(told.bits.mean)} bits")
    copies = Cell(f"{leak.copies} of {leak.examples}", float(leak.copies)) if leak else None
    holds = "" if point.bound is None or point.bound_holds else "no guarantee here"
    rounds = plural(result.setup.federation.rounds, "round")
    goals = _answers_at(frontier, point)
    strength = setting(point.defense) or ABSENT
    if point.amount is not None and curve.amount_name:
        name = SHORTER.get(curve.amount_name, curve.amount_name)
        strength = f"{name.replace('_', ' ')} {point.amount:.3g}"
    return {
        Column("Defense", words=True): _words(curve.name),
        Column("Strength", words=True): Cell(strength, point.amount, goals),
        Column("Error left", "in % of a blind guess's"): _share(leak.error if leak else None),
        Column("PSNR", "dB; less is safer", notes=False): (
            _estimate(leak.psnr) if leak and leak.psnr else None
        ),
        Column("Near copies", brief=False): copies,
        Column("Picked out", picked, notes=False): rate,
        Column("Loss", f"after {rounds}"): _loss(point),
        Column("Extra loss", "over undefended", brief=False): _extra(point),
        Column("Right classes", "on other examples", brief=False): _share(point.accuracy),
        Column("Reference error", "theory, per entry", brief=False): (
            Cell(number(point.bound), point.bound, holds)
        ),
        Column("ε", "promise"): Cell(number(point.epsilon), point.epsilon),
    }


def _answers_at(frontier: Frontier, point: Point) -> str:
    """For which goals this is the setting."""
    titles = []
    for answer in frontier.answers:
        found = frontier.setting(answer)
        if found and found[1] == point:
            title = answer.title if answer.reached else f"nearest: {answer.title}"
            titles.append("recommended" if answer is frontier.main and answer.reached else title)
    return ", ".join(titles)


def _loss(point: Point) -> Cell:
    if point.loss and not math.isfinite(point.loss.mean):
        return Cell("diverged", 1e300)
    return _estimate(point.loss)


def _extra(point: Point) -> Cell:
    extra = point.extra_loss
    if extra is None or not math.isfinite(extra.mean):
        return EMPTY
    low, mean, high = (f"{100 * value:+,.0f}" for value in (extra.low, extra.mean, extra.high))
    return Cell(f"{mean} %", extra.mean, f"[{low}, {high}]")


def _words(text: str, note: str = "") -> Cell:
    return Cell(text, text, note)


def _number(value: float | None) -> Cell:
    return Cell(number(value), value if value is not None and math.isfinite(value) else None)


def _estimate(value: Interval | None) -> Cell:
    return replace(_number(value.mean), note=interval(value)) if value else _number(None)


def _share(value: Interval | None) -> Cell:
    if value is None:
        return EMPTY
    low, high = (share(end).removesuffix(" %") for end in (value.low, value.high))
    return Cell(share(value.mean), value.mean, f"[{low}, {high}]")
