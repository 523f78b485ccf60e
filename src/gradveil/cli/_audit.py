"""`gradveil audit`: which defense, how strong, and what it costs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from gradveil import audit
from gradveil._checks import check_count
from gradveil._imports import require
from gradveil._runner import processors
from gradveil.attacks import ThreatModel
from gradveil.audit import AuditResult, Federation, Goal, Releases, Settings
from gradveil.audit.report import check_folder, first_sentences, headline, what_was_audited
from gradveil.messages import LocalSteps

from ._options import (
    HELPS,
    AsFormat,
    Data,
    Format,
    SubjectOptions,
    bar,
    given,
    is_given,
    load_subject,
    option,
    options,
    typed,
    useless,
    with_fields,
)

INTERRUPTED = 130
QUICK = ("gradient-noise", "optimal-noise")
"""The defenses of a quick audit."""


@with_fields(SubjectOptions, HELPS)
def run_audit(
    context: typer.Context,
    data: Data = "mnist",
    batch_size: Annotated[int, typer.Option(help="Examples in a private batch.")] = 4,
    batches: Annotated[int, typer.Option(help="Private batches.")] = 1,
    seeds: Annotated[int, typer.Option(help="How often each is defended and attacked.")] = 1,
    defense: Annotated[
        list[str] | None,
        typer.Option(help="As 'optimal-noise' or 'optimal-noise(scale=0.1)'; repeatable."),
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="As 'strong(steps=300)'; repeatable.")
    ] = None,
    goal: Annotated[
        list[str] | None,
        typer.Option(
            help="As 'psnr<=15', 'identified<=10%', 'epsilon<=8', 'error>=90%' or 'loss<=+5%';"
            " repeated: all at once. Three usual levels if omitted."
        ),
    ] = None,
    strengths: Annotated[
        int, typer.Option(help="Of each defense whose amount is left open; quick: 3.")
    ] = 4,
    training_rounds: Annotated[
        int, typer.Option(help="Of the federated training; quick: 10.")
    ] = 24,
    clients: Annotated[int, typer.Option(help="Clients in the federated training.")] = 4,
    optimizer: Annotated[
        str | None, typer.Option(help="The server's: adam, adamw or sgd; default adam.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="The server's learning rate; default 0.001.")
    ] = None,
    labels: Annotated[
        Literal["known", "counts", "unknown"],
        typer.Option(help="What the attacker knows of the labels."),
    ] = "known",
    mechanism: Annotated[
        Literal["known", "realised", "unknown"],
        typer.Option(help="The defense; realised: its very levels or mask, too."),
    ] = "known",
    statistics: Annotated[bool, typer.Option(help="Of the data: mean, deviation, range.")] = True,
    steps: Annotated[int | None, typer.Option(help="Of the attacks; default 100.")] = None,
    message: Annotated[
        Literal["gradient", "update"], typer.Option(help="FedSGD's gradient or FedAvg's update.")
    ] = "gradient",
    local_steps: Annotated[int, typer.Option(help="FedAvg's steps on a client.")] = 2,
    local_lr: Annotated[float, typer.Option(help="FedAvg's rate on a client.")] = 0.1,
    time_budget: Annotated[
        float | None, typer.Option(help="Seconds; it ends with what is finished.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Processes; default one for each processor.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="With private-noise: for which ε is stated, beside one message.")
    ] = 100,
    delta: Annotated[float, typer.Option(help="The δ at which both ε are stated.")] = 1e-5,
    sample_rate: Annotated[
        float, typer.Option(help="Of Poisson sampling over these rounds; 1: all in all rounds.")
    ] = 1.0,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("gradveil-audit"),
    quick: Annotated[bool, typer.Option(help="Two defenses, short attacks and trainings.")] = False,
    format: AsFormat = "table",
    **others: Any,
) -> None:
    """Tell which defense to use, how strong, and what it costs, measured on this model and data.

    Each defense is run over strengths, or at the one given, attacked, and trained with; then the
    cheapest setting for each goal is looked for. Stop it at any time: the same command goes on
    where it stopped.
    """
    require("the audit", "gradveil[audit]", "jinja2", "plotly", "scipy", "torchmetrics", "PIL")
    for name, count in (("--batch-size", batch_size), ("--batches", batches)):
        check_count(count, name)
    if quick:
        strengths = strengths if is_given(context, "strengths") else 3
        training_rounds = training_rounds if is_given(context, "training_rounds") else 10
    with option("--defense", "defenses"):
        defenses = typed("defense", defense) if defense else [*QUICK] if quick else None
    with option("--attack", "attacks"):
        attacks = None if attack is None else typed("attack", attack)
    with option("--goal", "goals"):
        goals = [Goal.parse(text) for text in goal or []]
    with options(context):
        chosen = given(context, Settings) | {"strengths": strengths}
        settings = Settings(
            defenses,
            attacks,
            goals=goals,
            threat=ThreatModel(labels, mechanism, statistics),
            training_seeds=2 if quick else 3,
            releases=Releases(rounds, delta, sample_rate),
            **chosen,
        )
    local = None
    if message == "gradient":
        useless(context, "without `--message update`", ["local_steps", "local_lr"])
    else:
        with options(context, lr="--local-lr", steps="--local-steps"):
            local = LocalSteps(local_lr, local_steps)
    with options(context, rounds="--training-rounds"):
        chosen = {**given(context, Federation), "rounds": training_rounds}
        federation = Federation(local=local, **chosen)
    with option("--out", "out"):
        check_folder(out)
    subject, named = load_subject(context, batch_size * batches)
    with options(context, threat="--labels", **named), bar(Console(stderr=True)) as progress:
        result = audit.run(
            subject,
            federation,
            settings,
            folder=out / "cells",
            time_budget=time_budget,
            jobs=processors() if jobs is None else jobs,
            progress=progress,
            command=f"gradveil {shlex.join(sys.argv[1:])}",
        )
    _finish(result, out, format)


def _finish(result: AuditResult, out: Path, format: Format) -> None:
    report = audit.write_results(result, out)
    if format == "json":
        print(result.to_json())
    else:
        console = Console()
        show_audit(result, console if console.is_terminal else Console(width=100))
    stopped = "It was stopped early; what is finished was written. " if result.stopped else ""
    print(f"{stopped}Report: {report}", file=sys.stderr if format == "json" else sys.stdout)
    if result.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)


def show_audit(result: AuditResult, console: Console) -> None:
    """What the report says in words; its tables and pictures are in the report alone."""

    def say(asks: str, text: str) -> None:
        console.print(f"[bold]{escape(asks)}:[/] {escape(text)}", highlight=False)

    console.print(f"[bold]{escape(headline(result))}[/]", highlight=False)
    answers = result.frontier.answers
    for asks, text in first_sentences(result)[: 1 if answers else None]:
        say(asks, text)
    for answer in answers:
        missed = "" if answer.reached else ", not reached"
        text = f"{answer.sentence} {answer.not_promised}"
        say(f"{answer.title} ({', '.join(answer.goals)}{missed})", text)
        if answer.python:  # unbroken, to be pasted
            console.print(f"    {escape(answer.python)}", highlight=False, soft_wrap=True)
    for defense in () if answers else result.defenses:
        say(defense.name, defense.verdict)
    say("Audited", f"{what_was_audited(result)}. {' '.join(result.notes)}")
