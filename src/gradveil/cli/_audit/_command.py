"""The command `gradveil audit` and its options."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradveil._checks import check_count
from gradveil._extras import require
from gradveil.auditing import (
    AuditResult,
    Goal,
    Releases,
    check_attacks,
    check_settings,
    requested_defenses,
    write_results,
)
from gradveil.auditing.report import check_folder, output_folder

from .._audit_table import show_audit
from .._engines import EngineName, chosen_engine
from .._format import Format
from .._loading import (
    load_data,
    load_loss,
    load_model,
    output_key,
    split_public,
    typed_attacks,
    typed_defenses,
)
from .._options import data_source, option, options, own_options, useless
from .._progress import bar
from ._granted import MessageKind, local_training, parse_threat
from ._modes import Asked, Match, compare, curves, is_comparison, quickly

INTERRUPTED = 130
OWN = own_options(
    "batches", "seeds", "seed", "match", "scale", "ratio", "steps", "time_budget", "threat",
    "rounds", "delta", "sample_rate", "output", "strengths", "clients", "optimizer", "lr",
)  # fmt: skip


def run_audit(
    dataset: Annotated[
        str | None,
        typer.Option(help="mnist, cifar10 (embedded), or hf:NAME.", show_default="mnist"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Your own data: an .npz file or a folder.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A name, conv-net(width=16), or package.module:factory.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A state dict (no code is run).")] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="cross-entropy, mse, bce, next-token, or package.module:function.",
            show_default="cross-entropy",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="The output that the loss takes, by key or number, of several."),
    ] = None,
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
            " repeated: all at once. Three usual levels if left."
        ),
    ] = None,
    strengths: Annotated[
        int | None, typer.Option(help="Of each defense.", show_default="4")
    ] = None,
    training_rounds: Annotated[
        int | None, typer.Option(help="Of the federated training.", show_default="24")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="In it.", show_default="4")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Its server's: adam, adamw or sgd.", show_default="adam")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Its rate.", show_default="0.001")] = None,
    match: Annotated[
        Match | None,
        typer.Option(
            help="Compare defenses at one strength each, with this held equal, instead of curves."
        ),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Of the reference noise; the message's own RMS if left.")
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Of the reference pruning; 0.9 if left.")
    ] = None,
    threat: Annotated[
        list[str] | None,
        typer.Option(
            help="labels=known|counts|unknown, mechanism=known|realised|unknown,"
            " statistics=known|unknown; with commas, or repeated."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of the attacks; 100 if left.")] = None,
    message: Annotated[
        MessageKind, typer.Option(help="FedSGD's gradient or FedAvg's update.")
    ] = MessageKind.gradient,
    local_steps: Annotated[
        int | None, typer.Option(help="FedAvg's steps on a client.", show_default="2")
    ] = None,
    local_lr: Annotated[
        float | None, typer.Option(help="FedAvg's rate on a client.", show_default="0.1")
    ] = None,
    time_budget: Annotated[
        float | None, typer.Option(help="Seconds; it ends with what is finished.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; all processors if left.")] = None,
    engine: Annotated[EngineName, typer.Option(help="Where it is run.")] = EngineName.local,
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster.")] = None,
    rounds: Annotated[
        int, typer.Option(help="With private-noise: for which ε is stated, beside one message.")
    ] = 100,
    delta: Annotated[float, typer.Option(help="δ of both.")] = 1e-5,
    sample_rate: Annotated[
        float, typer.Option(help="Of Poisson sampling over these rounds; 1: all in all rounds.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="As cpu or cuda:0.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("gradveil-audit"),
    quick: Annotated[bool, typer.Option(help="Two defenses, short attacks and trainings.")] = False,
    format: Annotated[Format, typer.Option(help="Tables, or JSON for machines.")] = Format.table,
) -> None:
    """Tell which defense to use, how strong, and what it costs, measured on this model and data.

    Each defense is run over strengths, attacked, and trained with; then the cheapest setting for
    each goal is looked for. Stop it at any time: the same command goes on where it stopped.
    """
    require("the audit", "gradveil[audit]", "jinja2", "plotly", "scipy", "torchmetrics", "PIL")
    granted = parse_threat(threat or [])
    for option_name, count in (
        ("--batch-size", batch_size), ("--batches", batches), ("--seeds", seeds),
    ):  # fmt: skip
        check_count(count, option_name)
    with option("--defense", "defenses"):
        defenses = typed_defenses(defense) if defense else None
        requested = requested_defenses(defenses or [])
    comparing = is_comparison(match, scale, ratio, requested)
    where = "where defenses are compared at one strength each"
    for name, given in (
        ("--goal", goal), ("--strengths", strengths), ("--clients", clients), ("--lr", lr),
        ("--training-rounds", training_rounds), ("--optimizer", optimizer), ("--jobs", jobs),
        ("--address", address),
    ):  # fmt: skip
        useless(name, given, not comparing, where)
    equal = Match.utility if match is None else match
    with options({**OWN, "rounds": "--training-rounds"}):
        training = quickly(quick, training_rounds, clients, optimizer, lr)
    with options(OWN):
        check_settings(seeds, seed, equal.value, scale, ratio, steps, True, time_budget)
        check_count(5 if strengths is None else strengths, "strengths")
        releases = Releases(rounds, delta, sample_rate)
    with option("--goal"):
        goals = [Goal.parse(text) for text in goal or []]
    local = local_training(message, local_steps, local_lr)
    with option("--attack", "attacks"):
        attacks = None if attack is None else typed_attacks(attack)
        check_attacks(attacks or [])
    with option("--out", "out"):
        check_folder(out)
    with options(own_options("jobs", "address")):
        engines = chosen_engine(engine, jobs, address)
    said, source = data_source(dataset, data)
    samples = load_data(said, source, device)
    loss_fn = load_loss(loss, samples)
    name, network = load_model(model, weights, samples, seed, device)
    private, public = split_public(samples, batch_size * batches)
    asked = Asked(
        network, loss_fn, private, public, samples, defenses, attacks, steps, granted, local,
        batches, seeds, seed, time_budget, releases, output_key(output),
        {
            "data": samples.name,
            "model": name,
            "command": _command(),
            "weights": "untrained" if weights is None else weights.name,
        },
    )  # fmt: skip
    named = {**OWN, "model": "--model", "targets": said, "inputs": said, "loss_fn": "--loss"}
    with output_folder(out), options(named), bar(Console(stderr=True)) as progress:
        if comparing:
            result = compare(asked, equal, scale, ratio, quick, progress)
        else:
            store = out / "store"
            result = curves(asked, goals, strengths, training, engines, store, quick, progress)
    _finish(result, out, format)


def _finish(result: AuditResult, out: Path, format: Format) -> None:
    report = write_results(result, out)
    if format is Format.json:
        print(result.to_json())
    else:
        console = Console()
        show_audit(result, console if console.is_terminal else Console(width=100))
    stopped = "" if result.complete else "It was stopped early; what is finished was written. "
    print(f"{stopped}Report: {report}", file=sys.stderr if format is Format.json else sys.stdout)
    if result.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _command() -> str:
    return f"gradveil {shlex.join(sys.argv[1:])}"
