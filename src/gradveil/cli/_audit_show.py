"""An audit for the terminal: answers and curves, or a comparison at one strength each."""

import math
from collections.abc import Mapping
from math import log2

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from gradveil.audit import (
    Answer,
    AttackResult,
    AuditResult,
    BoundResult,
    Curve,
    DefenseResult,
    Frontier,
    Point,
    ToldApart,
)
from gradveil.audit.report import (
    dominated,
    estimate,
    headline,
    most_told,
    number,
    plural,
    setting,
    share,
    size,
    strength,
    strongest_leak,
    three_sentences,
    undefended_words,
    weights,
)
from gradveil.catalog import shown_name
from gradveil.scoring import Interval


def show_audit(result: AuditResult, console: Console) -> None:
    """What was found, then what was audited, then notes."""
    if result.frontier is None or result.frontier.is_comparison:
        _show_setup(result, console)
        show_comparison(result, console)
        return
    show_frontier(result, result.frontier, console)
    _show_setup(result, console)
    if result.notes:
        console.print(escape(" ".join(result.notes)), style="dim", highlight=False)


def _show_setup(result: AuditResult, console: Console) -> None:
    setup = result.setup
    console.print(
        f"[bold]{escape(setup.model)}[/] ({setup.parameters:,} parameters,"
        f" {escape(weights(result))}) on {escape(setup.data)}, {setup.date}, gradveil"
        f" {setup.versions.get('gradveil', '')}:"
        f" {setup.batches} × {setup.batch_size} examples, {setup.seeds} seed(s),"
        f" {setup.message} sent. {escape(setup.equal)}",
        highlight=False,
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
        " 0 % is a copy, 100 % is no further than the guess.",
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
        f" δ = {frontier.delta:g}, with secret noise (these trainings had seeds) and one example or"
        " client replaced by an empty one; the smaller, the stronger; -: none.",
        "[..]: 95 % interval.",
    ]
    return " ".join(part for part in parts if part)


NOTE = (
    "U1: how much of a training step is kept (1 is all). U2: how much noise makes it vary (0 is not"
    " at all). Reference: the squared error per entry that no attacker would go below if the data"
    " were Gaussian, in brackets its simple form (from the trace of the information); real images"
    " are easier to guess, so it is no guarantee. †: not even that, for this model. [..]: 95 %"
    " interval over images, batches and seeds."
)

TOLD_APART = (
    " Picked out: how often an attacker who knows the other examples of the batch picks the right"
    " one of the candidates. Bits: what a message tells of it."
)

COMPARED = 21
"""Letters of a defense's name in a line: "optimal noisy pruning"."""


def show_comparison(result: AuditResult, console: Console) -> None:
    """The tables, the verdicts, and what one should know."""
    console.print(_cost_table(result))
    if any(defense.attacks for defense in result.defenses):
        console.print(_attack_table(result))
    told = {d.name: d.told_apart for d in result.defenses if d.told_apart}
    if told:
        console.print(_told_apart_table(result, told))
    if any(defense.privacy for defense in result.defenses):
        console.print(_privacy_table(result))
    if result.undefended is not None:
        style = "dim" if result.undefended.can_judge else "bold"
        words = undefended_words(result.undefended, result.setup.tokens)
        console.print(escape(words), style=style, highlight=False)
        console.print()
    for defense in result.defenses:
        verdict = escape(defense.verdict)
        console.print(f"[bold]{escape(defense.name)}[/]: {verdict}", highlight=False)
    console.print()
    priors = {d.bound.prior for d in result.defenses if d.bound}
    batches = {d.bound.batches for d in result.defenses if d.bound}
    over = f", over {plural(max(batches), 'batch')}" if batches else ""
    prior = (
        f"Reference errors are for data that are: {', '.join(sorted(priors))}{over}. "
        if priors
        else ""
    )
    text = escape(f"{prior}{NOTE}{TOLD_APART if told else ''} {' '.join(result.notes)}")
    console.print(text, style="dim", highlight=False)


def _told_apart_table(result: AuditResult, told: Mapping[str, ToldApart]) -> Table:
    one = next(iter(told.values()))
    table = _blank(f"Who is picked out of {one.candidates} candidates (chance: {one.chance:.1%})")
    _add_defenses(table, result)
    for name in ("picked out", "interval", "bits told", "mean rank"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, found in told.items():
        table.add_row(
            escape(name),
            f"{found.rate.mean:.0%}",
            f"[{found.rate.low:.0%}, {found.rate.high:.0%}]".replace("[", "\\["),
            f"{found.bits.mean:.2f} of {log2(found.candidates):.2f}",
            f"{found.rank:.1f}",
        )
    return table


def _privacy_table(result: AuditResult) -> Table:
    """ε(δ) and recognition, with what the exact attacker reached beside it."""
    stated = next(d.privacy for d in result.defenses if d.privacy)
    sampled = "" if stated.sample_rate == 1 else f", Poisson sampling at {stated.sample_rate:g}"
    table = _blank(
        f"(ε, δ) at δ = {stated.delta:g}, and who can be recognised of {stated.candidates}"
        f" ({plural(stated.rounds, 'round')}{sampled}); with secret noise, that of this audit has a"
        " seed"
    )
    _add_defenses(table, result)
    for name in ("for each", "ε, 1 message", "ε, rounds", "≤ 1 message", "≤ rounds", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    for defense in result.defenses:
        found = defense.privacy
        told = f"{defense.told_apart.rate.mean:.0%}" if defense.told_apart else "-"
        cells = ["-", "no guarantee", "", "", ""]
        if found is not None:
            chances = [f"{c:.1%}" for c in (found.recognition, found.recognition_rounds)]
            relation = f"{found.unit}, {found.neighbours}"
            cells = [relation, number(found.epsilon), number(found.epsilon_rounds), *chances]
        table.add_row(escape(defense.name), *cells, told)
    return table


def _cost_table(result: AuditResult) -> Table:
    table = _blank("What it costs and what it guarantees")
    _add_defenses(table, result)
    table.add_column("setting")
    for name in ("U1", "U2", "loss", "sent", "time", "reference", "dB ≤"):
        table.add_column(name, justify="right", no_wrap=True)
    for defense in result.defenses:
        table.add_row(*_cost_row(defense))
    return table


def _cost_row(defense: DefenseResult) -> list[str]:
    bound, training = defense.bound, defense.training
    return [
        escape(defense.name),
        setting(defense.defense),
        number(defense.utility_first),
        number(defense.utility_second),
        number(training.loss_after.mean) if training else "-",
        size(defense.bytes_sent),
        f"{number(defense.time_ratio)}×",
        _bound(bound) if bound else "no guarantee",
        number(bound.psnr_ceiling) if bound else "",
    ]


def _bound(bound: BoundResult) -> str:
    """The number, with the trace form beside the full one, and a mark where it does not hold."""
    mark = "" if bound.holds else " †"
    trace = f" ({number(bound.trace_mse)})" if bound.method != "trace" else ""
    return f"{number(bound.mse)}{trace}{mark}"


def _attack_table(result: AuditResult) -> Table:
    image, labels = result.setup.is_image, result.setup.threat_labels != "known"
    found = any(a.accuracy for d in result.defenses for a in d.attacks)
    table = _blank("What attacks recovered (*: knows the defense)")
    _add_defenses(table, result)
    table.add_column("attack", no_wrap=True)
    error, share = ("wrong", "tokens found") if result.setup.tokens else ("MSE", "columns found")
    names = (
        error,
        *(("PSNR", "SSIM") if image else ()),
        *((share,) if found else ()),
        *(("labels",) if labels else ()),
    )
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for defense in result.defenses:
        for place, attack in enumerate(defense.attacks):
            table.add_row(
                "" if place else escape(defense.name), *_attack_row(attack, image, found, labels)
            )
    return table


def _attack_row(attack: AttackResult, image: bool, found: bool, labels: bool) -> list[str]:
    star = " *" if attack.knows_defense else ""
    cells = [f"{escape(shown_name(attack.attack))}{star}", estimate(attack.mse)]
    if image:
        cells += [estimate(attack.psnr), number(attack.ssim.mean) if attack.ssim else "-"]
    if found:
        cells.append(f"{attack.accuracy.mean:.0%}" if attack.accuracy else "-")
    if labels:
        accuracy = attack.label_accuracy
        cells.append("-" if accuracy is None else f"{accuracy:.0%}")
    return cells


def _add_defenses(table: Table, result: AuditResult) -> None:
    """The first column; names that are longer than `COMPARED` wrap."""
    longest = max((len(defense.name) for defense in result.defenses), default=0)
    table.add_column("defense", width=min(COMPARED, max(longest, len("defense"))))


def _blank(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
