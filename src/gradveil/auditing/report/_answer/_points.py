"""The table of all points."""

import math

from gradveil.auditing._frontier import Answer, Curve, Frontier, Point
from gradveil.auditing._result import AuditResult
from gradveil.scoring import Interval

from .._numbers import ABSENT, number, plural
from .._style import setting
from .._tables import Cell, Column, Table, estimate_cell
from ._facts import answered, main_answer, most_told, strongest_leak
from ._metrics import share

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
