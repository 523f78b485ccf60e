"""Answers and curves of an audit over strengths for the terminal."""

import math

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from gradveil.auditing import Answer, AuditResult, Curve, Frontier, Interval, Point
from gradveil.auditing.report import (
    dominated,
    estimate,
    headline,
    most_told,
    number,
    plural,
    share,
    strength,
    strongest_leak,
    three_sentences,
)

NAME = 20
"""Letters of a defense's name in a line."""
INDENT = 2


def show_frontier(result: AuditResult, frontier: Frontier, console: Console) -> None:
    """Three sentences, the answers with their lines, the table of all points, how to read it."""
    console.print(f"[bold]{escape(headline(result, frontier))}[/]", highlight=False)
    for sentence in three_sentences(result, frontier):
        text = f"[bold]{escape(sentence.asks)}:[/] {escape(sentence.text)}"
        console.print(text, highlight=False)
    console.print()
    for answer in frontier.answers:
        _show_answer(answer, console)
    console.print(_points(result, frontier))
    beaten = dominated(frontier)
    if beaten:
        console.print(escape(beaten), highlight=False)
    console.print(escape(_reading(frontier)), style="dim", highlight=False)


def _show_answer(answer: Answer, console: Console) -> None:
    goals = ", ".join(answer.goals)
    mark = "" if answer.reached else ", not reached"
    console.print(f"[bold]{escape(answer.title)}[/] ({escape(goals)}{mark})", highlight=False)
    missed = "" if answer.shortfall in answer.sentence else answer.shortfall
    parts = [answer.sentence, missed]
    if answer.equal:
        parts.append(f"As good, as far as measured: {', '.join(answer.equal)}.")
    _print(" ".join(part for part in parts if part), console)
    for line in (answer.python, answer.toml):
        if line:  # unbroken, to be pasted
            console.print(f"    {escape(line)}", style="cyan", highlight=False, soft_wrap=True)
    for term, text in (("Rests on", answer.rests_on), ("Not promised", answer.not_promised)):
        if text:
            _print(f"{term}: {text}", console, "dim")
    console.print()


def _print(text: str, console: Console, style: str = "none") -> None:
    console.print(Padding(escape(text), (0, 0, 0, INDENT)), style=style, highlight=False)


def _points(result: AuditResult, frontier: Frontier) -> Table:
    table = Table(
        title="Every defense at every strength (*: an answer)",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    longest = max((len(curve.name) for curve in frontier.curves), default=0)
    table.add_column("defense", width=min(NAME, max(longest, len("no defense"))))
    table.add_column("strength", min_width=len("scale 0.000945 *"))
    leak = ("error left", *(("dB",) if result.setup.is_image else ()))
    for name in (*leak, "picked", "loss", "ε"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*_row(result, None, frontier.undefended))
    specs = {answer.defense for answer in frontier.answers if answer.reached}
    for curve in frontier.curves:
        for place, point in enumerate(curve.points):
            first, *cells = _row(result, curve, point)
            star = " *" if point.defense in specs else ""
            table.add_row("" if place else first, f"{cells[0]}{star}", *cells[1:])
    return table


def _row(result: AuditResult, curve: Curve | None, point: Point) -> list[str]:
    leak, told = strongest_leak(point), most_told(point)
    amount = strength(curve, point)
    cells = [escape(curve.name) if curve else "no defense", escape(amount)]
    cells.append(_shares(leak.error if leak else None))
    if result.setup.is_image:
        cells.append(number(leak.psnr.mean) if leak and leak.psnr else "-")
    cells += [share(told.rate.mean) if told else "-", _loss(point.loss)]
    return [*cells, "-" if point.epsilon is None else number(point.epsilon)]


def _shares(value: Interval | None) -> str:
    if value is None:
        return "-"
    return escape(f"{share(value.mean)} [{share(value.low)[:-2]}, {share(value.high)[:-2]}]")


def _loss(value: Interval | None) -> str:
    if value is None:
        return "-"
    return escape(estimate(value)) if math.isfinite(value.mean) else "diverged"


def _reading(frontier: Frontier) -> str:
    told, moments = most_told(frontier.undefended), ", ".join(map(str, frontier.moments))
    seeds = plural(frontier.training_seeds, "seed")
    parts = [
        f"Error left: the strongest attack's squared error over a blind guess's ({frontier.guess});"
        " 0 % is a copy, 100 % is nothing learned.",
        f"Messages were attacked at rounds {moments}; the worst counts."
        if len(frontier.moments) > 1
        else "",
        f"Picked: how often an attacker who knows the rest of the batch picks the right one of"
        f" {told.candidates} candidates."
        if told
        else "",
        f"Loss: on other examples, after {plural(frontier.rounds, 'round')} with"
        f" {frontier.optimizer}, {seeds}.",
        f"ε: the promise of differential privacy over {plural(frontier.epsilon_rounds, 'round')},"
        f" δ = {frontier.delta:g}; the smaller, the stronger; -: none.",
        "[..]: 95 % interval.",
    ]
    return " ".join(part for part in parts if part)
