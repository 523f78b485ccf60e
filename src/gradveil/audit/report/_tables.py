"""The report's tables: what each cell says, and the exact value that it is sorted by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradveil.attacks import FINISHED
from gradveil.catalog import shown_text
from gradveil.scoring import Interval

from .._result import (
    Answer,
    AttackResult,
    AuditResult,
    BoundResult,
    Curve,
    DefenseResult,
    Frontier,
    Point,
)
from ._facts import answered, main_answer, most_told, share, strongest_leak
from ._numbers import ABSENT, interval, number, percent, plural, size
from ._style import attack_names, attack_on, setting

NO_GUARANTEE = "no guarantee"


@dataclass(frozen=True)
class Cell:
    """A text, the value behind it (`None` sorts last), and a smaller second line."""

    text: str
    value: float | str | None = None
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A heading, with its unit or a hint on a second line."""

    label: str
    hint: str = ""
    words: bool = False
    """Whether its cells hold words rather than numbers."""
    on_paper: bool = True
    """Whether it is printed."""


@dataclass(frozen=True)
class Table:
    """Rows whose first cell is their heading."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def summary_table(result: AuditResult) -> Table:
    """One row for each defense."""
    attacks = attack_names(result)
    columns = [
        Column("Defense", words=True),
        Column("Signal kept", "U1; 1 is all"),
        Column("Noise", "U2; 0 is none"),
        Column("Loss", _training_hint(result)),
        Column("Reference error", "theory, per entry"),
        *([Column("Reference PSNR", "theory, dB")] if result.setup.is_image else []),
        *(Column(f"Error of {name}", "squared, per entry") for name in attacks.values()),
        *([Column("Picked out", _candidates_hint(result))] if _tells_apart(result) else []),
        Column("Message", "size"),
        Column("Time", "× undefended"),
    ]
    rows = tuple(tuple(_summary_row(d, list(attacks), result)) for d in result.defenses)
    caption = "What each defense keeps, guarantees, leaks and costs"
    return Table("summary", caption, tuple(columns), rows)


def attack_table(result: AuditResult) -> Table:
    """One row for each defense and attack."""
    image = result.setup.is_image
    columns = [
        Column("Defense", words=True),
        Column("Attack", words=True),
        Column("Error", "squared, per entry"),
        *([Column("PSNR", "dB"), Column("SSIM", "1 is identical")] if image else []),
        Column("Labels found"),
        Column("Seconds", "per batch"),
        Column("Runs"),
    ]
    names = attack_names(result)
    rows = tuple(
        tuple(_attack_row(d, a, names[a.attack], image)) for d in result.defenses for a in d.attacks
    )
    return Table("attacks", "What each attack reached", tuple(columns), rows)


def guarantee_table(result: AuditResult) -> Table:
    """One row for each defense: what is proved about it, and under which assumption."""
    columns = (
        Column("Defense", words=True),
        Column("Reference error", "per entry"),
        Column("Simple form", "trace; per entry"),
        Column("A limit for", "data that are", words=True),
        Column("Counts noise levels", "what they reveal", words=True),
        *_privacy_columns(result),
        Column("Formal privacy", words=True),
    )
    rows = tuple(tuple(_guarantee_row(d, result)) for d in result.defenses)
    return Table("guarantees", "What is proved about each defense", columns, rows)


def _summary_row(defense: DefenseResult, attacks: Sequence[str], result: AuditResult) -> list[Cell]:
    training, bound = defense.training, defense.bound
    cells = [
        Cell(defense.name, defense.name, shown_text(defense.defense)),
        _cell(defense.utility_first),
        _cell(defense.utility_second),
        estimate_cell(training.loss_after if training else None),
        _bound_cell(bound),
    ]
    if result.setup.is_image:
        cells.append(Cell(NO_GUARANTEE) if bound is None else _cell(bound.psnr_ceiling))
    results = (attack_on(defense, spec) for spec in attacks)
    cells += [estimate_cell(a.mse) if a else Cell("not attacked") for a in results]
    if _tells_apart(result):
        cells.append(_told_apart_cell(defense))
    cells.append(Cell(size(defense.bytes_sent), float(defense.bytes_sent)))
    cells.append(Cell(f"{number(defense.time_ratio)} ×", defense.time_ratio))
    return cells


def _attack_row(defense: DefenseResult, attack: AttackResult, name: str, image: bool) -> list[Cell]:
    knows = "knows the defense" if attack.knows_defense else "unaware of the defense"
    cells = [
        Cell(defense.name, defense.name),
        Cell(name, name, knows),
        estimate_cell(attack.mse),
    ]
    cells += [estimate_cell(attack.psnr), estimate_cell(attack.ssim)] if image else []
    labels = attack.label_accuracy
    cells.append(Cell(percent(labels), labels))
    cells.append(_cell(attack.seconds))
    cells.append(Cell(str(len(attack.runs)), float(len(attack.runs)), _statuses(attack)))
    return cells


def _privacy_columns(result: AuditResult) -> list[Column]:
    """None of them where no defense has (ε, δ)."""
    stated = next((d.privacy for d in result.defenses if d.privacy), None)
    if stated is None:
        return []
    q = "all in all" if stated.sample_rate == 1 else f"rate {number(stated.sample_rate)}"
    return [
        Column("ε, one message", f"δ = {stated.delta:g}, secret noise"),
        Column(f"ε, {plural(stated.rounds, 'round')}", q),
        Column("Recognised at most", f"of {stated.candidates}, one message"),
    ]


def _privacy_cells(defense: DefenseResult) -> list[Cell]:
    stated = defense.privacy
    if stated is None:
        return [Cell(NO_GUARANTEE)] * 3
    most = f"{percent(stated.recognition_rounds)} with all rounds"
    return [
        replace(_cell(stated.epsilon), note=stated.hides),
        _cell(stated.epsilon_rounds),
        Cell(percent(stated.recognition), stated.recognition, most),
    ]


def _guarantee_row(defense: DefenseResult, result: AuditResult) -> list[Cell]:
    bound = defense.bound
    cells = [Cell(defense.name, defense.name), _bound_cell(bound, with_batches=True)]
    if bound is None:
        cells += [Cell(NO_GUARANTEE), Cell("–"), Cell("–")]
    else:
        plan = "yes" if bound.counts_plan else "no"
        cells += [_cell(bound.trace_mse), Cell(bound.prior, bound.prior), Cell(plan, plan)]
    if _privacy_columns(result):
        cells += _privacy_cells(defense)
    return [*cells, Cell(defense.formal_privacy, defense.formal_privacy)]


def _ends(bound: BoundResult) -> str:
    """The interval that the batches leave."""
    if bound.mse_interval is None:
        return ""
    low, high = bound.mse_interval
    return f" ({number(low)} to {number(high)})"


def _bound_cell(bound: BoundResult | None, with_batches: bool = False) -> Cell:
    if bound is None:
        return Cell(NO_GUARANTEE)
    error = f" ± {number(bound.mse_standard_error)}" if bound.mse_standard_error else ""
    over = f", over {plural(bound.batches, 'batch')}{_ends(bound)}" if with_batches else ""
    fails = ", no guarantee here" if not bound.holds else ""
    return replace(_cell(bound.mse), note=f"{bound.method}{error}{over}{fails}")


def _cell(value: float | None) -> Cell:
    return Cell(number(value), value if value is not None and math.isfinite(value) else None)


def estimate_cell(value: Interval | None) -> Cell:
    """A mean with its interval below it."""
    return replace(_cell(value.mean), note=interval(value)) if value else _cell(None)


def _statuses(attack: AttackResult) -> str:
    """What did not end as it should."""
    counts = {s: sum(r.status == s for r in attack.runs) for s in (r.status for r in attack.runs)}
    return ", ".join(f"{n} {status}" for status, n in counts.items() if status != FINISHED)


def _tells_apart(result: AuditResult) -> bool:
    return any(defense.told_apart for defense in result.defenses)


def _candidates_hint(result: AuditResult) -> str:
    counts = sorted({d.told_apart.candidates for d in result.defenses if d.told_apart})
    return f"right one of {', '.join(map(str, counts))}"


def _told_apart_cell(defense: DefenseResult) -> Cell:
    told = defense.told_apart
    if told is None:
        return _cell(None)
    ends = f"{percent(told.rate.low)} to {percent(told.rate.high)}"
    return Cell(percent(told.rate.mean), told.rate.mean, f"{ends}, {number(told.bits.mean)} bits")


def _training_hint(result: AuditResult) -> str:
    steps = {d.training.steps for d in result.defenses if d.training}
    return f"after {plural(max(steps), 'step')}" if steps else "not measured"


def training_note(result: AuditResult) -> str:
    """The losses that the table's losses are read against."""
    training = next((d.training for d in result.defenses if d.training), None)
    if training is None:
        return ""
    return (
        f"Loss: {number(training.loss_before)} before training,"
        f" {number(training.loss_after_undefended)} after {plural(training.steps, 'step')} without"
        " a defense."
    )


def strongest(defense: DefenseResult) -> AttackResult | None:
    """The attack with the least mean error."""
    return min(defense.attacks, key=lambda a: a.mse.mean, default=None)


def details(attack: AttackResult) -> str:
    """The interval of the error, and the mean in dB for images."""
    psnr = f"{number(attack.psnr.mean)} dB" if attack.psnr else ""
    return ", ".join(part for part in (interval(attack.mse), psnr) if part)


DIVERGED = "diverged"


def points_table(result: AuditResult, frontier: Frontier) -> Table:
    """One row for each defense and strength, the undefended message first."""
    image = result.setup.is_image
    trained, count = plural(frontier.rounds, "round"), candidates(frontier)
    columns = [
        Column("Defense", words=True),
        Column("Strength", words=True),
        Column("Error left", "in % of a blind guess's"),
        *([Column("PSNR", "dB; less is safer", on_paper=False)] if image else []),
        Column("Near copies", on_paper=False),
        Column("Picked out", f"right one of {count}" if count else "not measured"),
        Column("Loss", f"after {trained}"),
        Column("Extra loss", "over undefended", on_paper=False),
        Column("Right classes", "on other examples", on_paper=False),
        Column("Reference error", "theory, per entry", on_paper=False),
        Column("ε", "promise"),
    ]
    rows = [_row(None, "", frontier.undefended, image)]
    rows += [
        _row(curve, _note(frontier, curve, point), point, image)
        for curve, point in frontier.points()
    ]
    caption = "Every defense at every strength: what leaks, and what training loses"
    return Table("points", caption, tuple(columns), tuple(map(tuple, rows)))


def _row(curve: Curve | None, note: str, point: Point, image: bool) -> list[Cell]:
    leak, told = strongest_leak(point), most_told(point)
    error = leak.error if leak else None
    copies = Cell(f"{leak.copies} of {leak.examples}", float(leak.copies)) if leak else Cell(ABSENT)
    name = curve.name if curve else "no defense"
    cells = [Cell(name, name, note), Cell(strength(curve, point), point.amount)]
    cells.append(_share_cell(error))
    cells += [estimate_cell(leak.psnr if leak else None)] if image else []
    cells += [copies, _share_cell(told.rate if told else None), _loss(point)]
    cells += [_extra(point), _share_cell(point.accuracy)]
    holds = "" if point.bound is None or point.bound_holds else "no guarantee here"
    cells.append(Cell(number(point.bound), point.bound, holds))
    cells.append(Cell(number(point.epsilon), point.epsilon))
    return cells


def _share_cell(value: Interval | None) -> Cell:
    if value is None:
        return Cell(ABSENT)
    ends = f"{share(value.low).removesuffix(' %')} to {share(value.high)}"
    return Cell(share(value.mean), value.mean, ends)


def _extra(point: Point) -> Cell:
    extra = point.extra_loss
    if extra is None or not math.isfinite(extra.mean):
        return Cell(ABSENT)
    low, mean, high = (f"{100 * value:+,.0f}" for value in (extra.low, extra.mean, extra.high))
    return Cell(f"{mean} %", extra.mean, f"{low} to {high} %")


def strength(curve: Curve | None, point: Point) -> str:
    """What was varied with its number; all numbers of the setting where nothing is said."""
    if curve is None or point.amount is None or not curve.amount_name:
        return setting(point.defense)
    name = curve.amount_name.replace("_", " ").removeprefix("noise ")
    return f"{name} {point.amount:.3g}"


def _loss(point: Point) -> Cell:
    if point.loss and not math.isfinite(point.loss.mean):
        return Cell(DIVERGED, 1e300)
    return estimate_cell(point.loss)


def _note(frontier: Frontier, curve: Curve, point: Point) -> str:
    main = main_answer(frontier)
    titles = [
        "recommended" if answer is main and answer.reached else _title(answer)
        for answer in frontier.answers
        if (found := answered(frontier, answer)) and found[1] == point
    ]
    beaten = ["beaten"] if curve.dominated_by else []
    return ", ".join([*titles, *beaten])


def _title(answer: Answer) -> str:
    return answer.title if answer.reached else f"nearest: {answer.title}"


def candidates(frontier: Frontier) -> int | None:
    """Among how many the right one was picked; `None`: not measured."""
    points = [frontier.undefended, *(point for _, point in frontier.points())]
    return max((told.candidates for p in points if (told := most_told(p))), default=None)
