"""An audit for the terminal: the report's sentences and its tables."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as Grid

from gradveil.audit import Answer, AuditResult
from gradveil.audit.report import (
    Cell,
    Column,
    Table,
    attack_table,
    audited,
    first_sentences,
    headline,
    points_table,
    share,
    summary_table,
)

NAME = 21
"""Letters of a name in a line: "optimal noisy pruning"."""


def show_audit(result: AuditResult, console: Console) -> None:
    """What was found, how to read it, then what was audited."""
    frontier = result.frontier
    console.print(f"[bold]{escape(headline(result))}[/]", highlight=False)
    # the answers say the rest themselves
    for asks, text in first_sentences(result)[: 1 if frontier.answers else None]:
        console.print(f"[bold]{escape(asks)}:[/] {escape(text)}", highlight=False)
    console.print()
    for answer in frontier.answers:
        _show_answer(answer, console)
    points = points_table(result)
    console.print(_grid(points))
    hints = [f"{column.label}: {column.hint}" for column in points.columns if column.hint]
    _dim(f"{'; '.join(hints)}. A blind guess is {frontier.guess}.", console)
    if not frontier.answers:
        _show_comparison(result, console)
    _dim(f"{audited(result)}. {' '.join(result.notes)}", console)


def _show_comparison(result: AuditResult, console: Console) -> None:
    console.print(_grid(summary_table(result)))
    if any(defense.attacks for defense in result.defenses):
        console.print(_grid(attack_table(result)))
    stated = next((d.privacy for d in result.defenses if d.privacy), None)
    if stated is not None:
        releases = result.setup.releases
        console.print(
            f"ε is at δ = {releases.delta:g}, with secret noise (that of this audit has a seed) and"
            f" a sampling rate of {releases.sample_rate:g}; it hides {stated.hides}. The right one"
            f" of {stated.candidates} is recognised in at most {share(stated.recognition_rounds)}"
            " with all rounds.",
            highlight=False,
        )
    for defense in result.defenses:
        verdict = escape(defense.verdict)
        console.print(f"[bold]{escape(defense.name)}[/]: {verdict}", highlight=False)
    console.print()
    priors = sorted({d.bound.prior for d in result.defenses if d.bound})
    told = f" Reference errors are for data that are: {', '.join(priors)}." if priors else ""
    kept = "Signal kept (U1): the share of a training step that remains. Noise (U2): how much"
    _dim(f"{kept} noise makes it vary.{told}", console)


def _show_answer(answer: Answer, console: Console) -> None:
    goals = ", ".join(answer.goals)
    mark = "" if answer.reached else ", not reached"
    console.print(f"[bold]{escape(answer.title)}[/] ({escape(goals)}{mark})", highlight=False)
    equal = ", ".join(answer.equal)
    good = f" As good, as far as measured: {equal}." if equal else ""
    console.print(Padding(escape(f"{answer.sentence}{good}"), (0, 0, 0, 2)), highlight=False)
    for line in (answer.python, answer.toml):
        if line:  # unbroken, to be pasted
            console.print(f"    {escape(line)}", style="cyan", highlight=False, soft_wrap=True)
    for term, text in (("Rests on", answer.rests_on), ("Not promised", answer.not_promised)):
        if text:
            _dim(f"{term}: {text}", console, indent=2)
    console.print()


def _dim(text: str, console: Console, indent: int = 0) -> None:
    shown = Padding(escape(text), (0, 0, 0, indent))
    console.print(shown, style="dim", highlight=False)


def _grid(table: Table) -> Grid:
    """A table's columns that fit; a heading that the row above has is not said again."""
    grid = Grid(
        title=escape(table.caption),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    shown = [(place, column) for place, column in enumerate(table.columns) if column.brief]
    for place, column in shown:
        label = escape(column.label.replace(" ", "\n"))
        if column.words:
            longest = max((len(row[place].text) for row in table.rows), default=0) if place else 0
            grid.add_column(label, min_width=min(longest, NAME), max_width=NAME)
        else:
            grid.add_column(label, justify="right", no_wrap=True)
    above = None
    for row in table.rows:
        texts = [_text(row[place], column) for place, column in shown]
        grid.add_row("" if texts[0] == above else texts[0], *texts[1:])
        above = texts[0]
    return grid


def _text(cell: Cell, column: Column) -> str:
    if not cell.note or not column.notes:
        return escape(cell.text)
    return escape(f"{cell.text} ({cell.note})" if column.words else f"{cell.text} {cell.note}")
