"""The tables, for the report and the terminal: what cells say, and what they are sorted by."""

import math
from dataclasses import dataclass, replace

from gradveil.attacks import FINISHED
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
from ._facts import (
    answered,
    attack_names,
    every_point,
    main_answer,
    most_told,
    strongest_leak,
)
from ._numbers import ABSENT, interval, named, number, plural, setting, share, size


@dataclass(frozen=True)
class Cell:
    """A text, the value behind it (`None` sorts last), and a smaller second line."""

    text: str
    value: float | str | None = None
    note: str = ""
    unproved: bool = False
    """Whether it says that there is no guarantee."""


UNPROVED = Cell("no guarantee", unproved=True)


@dataclass(frozen=True)
class Column:
    """A heading, with its unit or a hint on a second line."""

    label: str
    hint: str = ""
    words: bool = False
    """Whether its cells hold words rather than numbers."""
    brief: bool = True
    """Whether it is shown where there is little room: on paper and in the terminal."""
    notes: bool = True
    """Whether the terminal has room for the notes of its cells."""


@dataclass(frozen=True)
class Table:
    """Rows whose first cell is their heading."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def summary_table(result: AuditResult) -> Table:
    """One row for each defense: what it keeps, what is proved about it, what it costs."""
    image = result.setup.is_image
    stated = next((d.privacy for d in result.defenses if d.privacy), None)
    privacy: list[Column] = []
    if stated is not None:
        q = stated.sample_rate
        privacy = [
            Column("ε, one message", f"δ = {stated.delta:g}, secret noise", notes=False),
            Column(
                f"ε, {plural(stated.rounds, 'round')}",
                "all in all" if q == 1 else f"Poisson sampling at {number(q)}",
            ),
            Column("Recognised at most", f"of {stated.candidates}, one message", notes=False),
        ]
    columns = (
        Column("Defense", words=True),
        Column("Signal kept", "U1; 1 is all"),
        Column("Noise", "U2; 0 is none"),
        Column("Reference error", "theory, per entry", notes=False),
        *([Column("Reference PSNR", "theory, dB", brief=False)] if image else []),
        Column("Simple form", "trace; per entry", brief=False),
        Column("A limit for", "data that are", words=True, brief=False),
        Column("Counts noise levels", "what they reveal", words=True, brief=False),
        *privacy,
        Column("Formal privacy", words=True, brief=False),
        Column("Message", "size"),
        Column("Time", "× undefended"),
    )
    rows = tuple(tuple(_summary_row(d, image, bool(privacy))) for d in result.defenses)
    return Table("summary", "What each defense keeps, guarantees and costs", columns, rows)


def _summary_row(defense: DefenseResult, image: bool, private: bool) -> list[Cell]:
    bound, stated = defense.bound, defense.privacy
    cells = [
        Cell(defense.name, defense.name, setting(defense.defense)),
        _cell(defense.utility_first),
        _cell(defense.utility_second),
        _bound(bound),
    ]
    if image:
        cells.append(_cell(bound.psnr_ceiling) if bound else UNPROVED)
    if bound is None:
        cells += [UNPROVED, Cell(ABSENT), Cell(ABSENT)]
    else:
        plan = "yes" if bound.counts_plan else "no"
        cells += [_cell(bound.trace_mse), Cell(bound.prior, bound.prior), Cell(plan, plan)]
    if stated is not None:
        most = f"{share(stated.recognition_rounds)} with all rounds"
        cells += [
            replace(_cell(stated.epsilon), note=stated.hides),
            _cell(stated.epsilon_rounds),
            Cell(share(stated.recognition), stated.recognition, most),
        ]
    elif private:
        cells += [UNPROVED] * 3
    return [
        *cells,
        Cell(defense.formal_privacy, defense.formal_privacy),
        Cell(size(defense.bytes_sent), float(defense.bytes_sent)),
        Cell(f"{number(defense.time_ratio)} ×", defense.time_ratio),
    ]


def rounds_table(result: AuditResult) -> Table:
    """The error left at each moment of the training: without a defense, and for each answer."""
    frontier = result.frontier
    shown = {"no defense": frontier.undefended}
    for answer in frontier.answers:
        if found := answered(frontier, answer):
            shown[named(found[0].name, found[1].defense)] = found[1]
    columns = (
        Column("Defense", words=True),
        *(Column(f"Round {moment}", "error left") for moment in frontier.moments),
    )
    rows = []
    for name, point in shown.items():
        errors = {leak.round: leak.error for leak in point.leaks}
        rows.append((Cell(name, name), *(_share(errors.get(m)) for m in frontier.moments)))
    caption = "What the strongest attack leaves to guess, over the rounds of a training"
    return Table("rounds", caption, columns, tuple(rows))


def attack_table(result: AuditResult) -> Table:
    """One row for each defense and attack."""
    setup, names = result.setup, attack_names(result)
    pairs = [(d, a) for d in result.defenses for a in d.attacks]
    found = any(attack.accuracy for _, attack in pairs)
    labels = setup.threat.labels != "known"
    columns = [
        Column("Defense", words=True),
        Column("Attack", words=True),
        Column("Aware", "of the defense"),
        Column("Error", "share wrong" if setup.tokens else "squared, per entry"),
        *([Column("PSNR", "dB"), Column("SSIM", notes=False)] if setup.is_image else []),
        *([Column("Tokens found" if setup.tokens else "Columns found")] if found else []),
        *([Column("Labels found")] if labels else []),
        Column("Seconds", "per batch", brief=False),
        Column("Runs", brief=False),
    ]
    rows = []
    for defense, attack in pairs:
        name, aware = names[attack.attack], "yes" if attack.knows_defense else "no"
        cells = [Cell(defense.name, defense.name), Cell(name, name), Cell(aware, aware)]
        cells.append(_estimate(attack.mse))
        cells += [_estimate(attack.psnr), _estimate(attack.ssim)] if setup.is_image else []
        cells += [_share(attack.accuracy)] if found else []
        cells += [Cell(share(attack.label_accuracy), attack.label_accuracy)] if labels else []
        runs = len(attack.runs)
        cells += [_cell(attack.seconds), Cell(str(runs), float(runs), _statuses(attack))]
        rows.append(tuple(cells))
    return Table("attacks", "What each attack reached", tuple(columns), tuple(rows))


def _statuses(attack: AttackResult) -> str:
    """What did not end as it should."""
    ends = [run.status for run in attack.runs if run.status != FINISHED]
    return ", ".join(f"{ends.count(status)} {status}" for status in dict.fromkeys(ends))


def _bound(bound: BoundResult | None) -> Cell:
    if bound is None:
        return UNPROVED
    spread = f" ± {number(bound.mse_standard_error)}" if bound.mse_standard_error else ""
    ends = bound.mse_interval
    within = f" ({number(ends[0])} to {number(ends[1])})" if ends else ""
    note = f"{bound.method}{spread}, over {plural(bound.batches, 'batch')}{within}"
    found = replace(_cell(bound.mse), note=note)
    if bound.holds:
        return found
    return replace(found, text=f"{found.text} †", note=f"{found.note}, no guarantee here")


def layer_table(result: AuditResult) -> Table:
    """One row for each tensor of the message: its noise and the share sent, by defense."""
    layers = {d.name: {layer.name: layer for layer in d.layers} for d in result.defenses}
    sizes = {layer.name: layer.size for d in result.defenses for layer in d.layers}
    columns = (Column("Tensor", words=True), *(Column(name) for name in layers))
    rows = tuple(
        (
            Cell(name, name, plural(entries, "entry")),
            *(_layer(by_name.get(name)) for by_name in layers.values()),
        )
        for name, entries in sizes.items()
    )
    return Table("layers", "Noise and share sent, by tensor and defense", columns, rows)


def _layer(layer: LayerResult | None) -> Cell:
    if layer is None:
        return Cell(ABSENT)
    kept = "" if layer.kept >= 1 else f"{share(layer.kept)} sent"
    return Cell(number(layer.noise) if layer.noise else "no noise", layer.noise, kept)


def points_table(result: AuditResult) -> Table:
    """One row for each defense and strength, the undefended message first."""
    frontier, image = result.frontier, result.setup.is_image
    told = next((t for p in every_point(frontier) if (t := most_told(p))), None)
    alike = " of its class" if told and told.one_class else ""
    picked = f"right one of {told.candidates}{alike}" if told else "not measured"
    columns = [
        Column("Defense", words=True),
        Column("Strength", words=True),
        Column("Error left", "in % of a blind guess's"),
        *([Column("PSNR", "dB; less is safer", notes=False)] if image else []),
        Column("Near copies", brief=False),
        Column("Picked out", picked, notes=False),
        Column("Loss", f"after {plural(result.setup.federation.rounds, 'round')}"),
        Column("Extra loss", "over undefended", brief=False),
        Column("Right classes", "on other examples", brief=False),
        Column("Reference error", "theory, per entry", brief=False),
        Column("ε", "promise"),
    ]
    rows = [_point_row(frontier, None, frontier.undefended, image)]
    rows += [_point_row(frontier, curve, point, image) for curve, point in frontier.points()]
    caption = "Every defense at every strength: what leaks, and what training loses"
    return Table("points", caption, tuple(columns), tuple(map(tuple, rows)))


def _point_row(frontier: Frontier, curve: Curve | None, point: Point, image: bool) -> list[Cell]:
    leak, told = strongest_leak(point), most_told(point)
    name = curve.name if curve else "no defense"
    beaten = "beaten" if curve and curve.dominated_by else ""
    copies = Cell(f"{leak.copies} of {leak.examples}", float(leak.copies)) if leak else Cell(ABSENT)
    holds = "" if point.bound is None or point.bound_holds else "no guarantee here"
    picked = _share(told.rate if told else None)
    bits = f", {number(told.bits.mean)} bits" if told else ""
    return [
        Cell(name, name, beaten),
        Cell(strength(curve, point), point.amount, _answers_at(frontier, point)),
        _share(leak.error if leak else None),
        *([_estimate(leak.psnr if leak else None)] if image else []),
        copies,
        replace(picked, note=f"{picked.note}{bits}"),
        _loss(point),
        _extra(point),
        _share(point.accuracy),
        Cell(number(point.bound), point.bound, holds),
        Cell(number(point.epsilon), point.epsilon),
    ]


def strength(curve: Curve | None, point: Point) -> str:
    """What was varied with its number; all numbers of the setting where nothing is said."""
    if curve is None or point.amount is None or not curve.amount_name:
        return setting(point.defense) or ABSENT
    name = curve.amount_name.replace("_", " ").removeprefix("noise ")
    return f"{name} {point.amount:.3g}"


def _answers_at(frontier: Frontier, point: Point) -> str:
    """For which goals this is the setting."""
    main, titles = main_answer(frontier), []
    for answer in frontier.answers:
        found = answered(frontier, answer)
        if found and found[1] == point:
            title = answer.title if answer.reached else f"nearest: {answer.title}"
            titles.append("recommended" if answer is main and answer.reached else title)
    return ", ".join(titles)


def _cell(value: float | None) -> Cell:
    return Cell(number(value), value if value is not None and math.isfinite(value) else None)


def _estimate(value: Interval | None) -> Cell:
    return replace(_cell(value.mean), note=interval(value)) if value else _cell(None)


def _share(value: Interval | None) -> Cell:
    if value is None:
        return Cell(ABSENT)
    low, high = (share(end).removesuffix(" %") for end in (value.low, value.high))
    return Cell(share(value.mean), value.mean, f"[{low}, {high}]")


def _extra(point: Point) -> Cell:
    extra = point.extra_loss
    if extra is None or not math.isfinite(extra.mean):
        return Cell(ABSENT)
    low, mean, high = (f"{100 * value:+,.0f}" for value in (extra.low, extra.mean, extra.high))
    return Cell(f"{mean} %", extra.mean, f"[{low}, {high}]")


def _loss(point: Point) -> Cell:
    if point.loss and not math.isfinite(point.loss.mean):
        return Cell("diverged", 1e300)
    return _estimate(point.loss)
