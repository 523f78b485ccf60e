"""`gradveil train`: federated training behind a defense."""

import dataclasses
import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ._format import Format

if TYPE_CHECKING:
    from gradveil.federated import RoundMetrics, Split, TrainingConfig, TrainingHistory


class Engine(str, Enum):
    """One process, or Flower's simulation."""

    local = "local"
    flower = "flower"


def train(
    data: Annotated[
        str, typer.Option("--data", "--dataset", help="A name, a folder, an .npz or hf:NAME.")
    ] = "mnist",
    model: Annotated[
        str | None, typer.Option(help="A name, conv-net(width=16), or package.module:factory.")
    ] = None,
    defense: Annotated[
        str, typer.Option(help="As in Python: 'optimal-noise(scale=0.1)'.")
    ] = "no-defense",
    clients: Annotated[int, typer.Option(help="Clients.")] = 4,
    batch_size: Annotated[int, typer.Option(help="Examples of each client in a round.")] = 16,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all.")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Or: how often the data is seen (default 1).")
    ] = None,
    partition: Annotated[str, typer.Option(help="iid, dirichlet or label.")] = "iid",
    alpha: Annotated[float, typer.Option(help="Of the Dirichlet partition.")] = 0.5,
    fraction: Annotated[float, typer.Option(help="Share of clients asked in a round.")] = 1.0,
    optimizer: Annotated[
        str | None, typer.Option(help="The server's: adam, adamw or sgd [adam; FedAvg: sgd].")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="The server's learning rate [1e-3; FedAvg: 1].")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="FedAvg with so many local steps; without: FedSGD.")
    ] = None,
    local_lr: Annotated[float, typer.Option(help="Learning rate of the local steps.")] = 0.01,
    local_batch_size: Annotated[
        int | None, typer.Option(help="Examples in a local step [the whole batch].")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Train on the first so many examples.")] = None,
    held_out: Annotated[
        int | None, typer.Option(help="Examples behind them, for evaluation [512, at most 1/5].")
    ] = None,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between evaluations.")] = 8,
    seed: Annotated[int, typer.Option(help="Of weights, partition, batches and noise.")] = 0,
    device: Annotated[str, typer.Option(help="As cpu or cuda:0.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results, curves, weights and checkpoints.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 8,
    resume: Annotated[bool, typer.Option(help="Continue from the folder's checkpoint.")] = False,
    engine: Annotated[Engine, typer.Option(help="One process, or Flower.")] = Engine.local,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Train a model over clients that defend what they send."""
    from gradveil.federated import TrainingConfig, load_split

    config = TrainingConfig(
        data=data,
        model=model,
        defense=defense,
        clients=clients,
        batch_size=batch_size,
        partition=partition,
        alpha=alpha,
        fraction=fraction,
        optimizer=optimizer,
        lr=lr,
        local_steps=local_steps,
        local_lr=local_lr,
        local_batch_size=local_batch_size,
        limit=limit,
        held_out=held_out,
        evaluate_every=evaluate_every,
        seed=seed,
        device=device,
    )
    if engine is Engine.flower and resume:
        raise ValueError(
            "Option `--resume` should be left out with `--engine flower`, which keeps no"
            " checkpoints here. Use `--engine local`."
        )
    examples = load_split(config)
    config = dataclasses.replace(config, rounds=_rounds(config, examples, rounds, epochs))
    history = _with_progress(config, examples, engine, out, resume, checkpoint_every)
    if out is not None:
        _draw(history, out)
    _show(history, out, format)


def _rounds(
    config: "TrainingConfig", data: "Split", rounds: int | None, epochs: float | None
) -> int:
    from gradveil._checks import check_positive
    from gradveil.federated import count_rounds

    if rounds is not None and epochs is not None:
        raise ValueError("Give `--rounds` or `--epochs`, not both.")
    if rounds is not None:
        return rounds
    epochs = 1.0 if epochs is None else epochs
    check_positive(epochs, "epochs")
    return count_rounds(epochs, len(data.targets), config)


def _with_progress(
    config: "TrainingConfig",
    data: "Split",
    engine: Engine,
    out: Path | None,
    resume: bool,
    checkpoint_every: int,
) -> "TrainingHistory":
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=config.rounds)
        latest = {"loss": "-", "accuracy": "-"}

        def show(row: "RoundMetrics") -> None:
            seen = {"loss": row.loss, "accuracy": row.accuracy}
            latest.update({k: f"{v:.3f}" for k, v in seen.items() if v is not None})
            text = "  ".join(f"{name} {value}" for name, value in latest.items())
            progress.update(task, completed=row.round, description=text)

        if engine is Engine.flower:
            from gradveil.flower import run_simulation_of

            return run_simulation_of(config, data, out=out, on_round=show, allow_imports=True)
        from gradveil.federated import train

        return train(
            config,
            data,
            out=out,
            resume=resume,
            checkpoint_every=checkpoint_every,
            on_round=show,
            on_notice=lambda text: console.print(text, style="yellow"),
            allow_imports=True,
        )


def _draw(history: "TrainingHistory", out: Path) -> None:
    from gradveil.federated import draw_curves

    draw_curves({history.config["defense"]: history}, out / "curves.png")


def _show(history: "TrainingHistory", out: Path | None, format: Format) -> None:
    if format is Format.json:
        print(json.dumps(dataclasses.asdict(history)))
        return
    names = ("round", "loss", "held_out_loss", "accuracy", "utility_first", "utility_second")
    table = Table(title=f"{history.config['defense']}: {history.config['data']}")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    every = max(1, len(history.rounds) // 10)
    for row in history.rounds:
        if row.round % every == 0 or row.round == len(history.rounds):
            table.add_row(*[_cell(getattr(row, name)) for name in names])
    Console().print(table)
    print(_summary(history))
    if out is not None:
        print(f"Results, curves and weights are in {out}.")


def _summary(history: "TrainingHistory") -> str:
    sent = sum(row.bytes_sent for row in history.rounds)
    text = f"{len(history.rounds)} rounds, {sent / 1e6:.1f} MB sent by clients"
    gradient = sum(row.seconds_gradient or 0.0 for row in history.rounds)
    defense = sum(row.seconds_defense or 0.0 for row in history.rounds)
    if gradient:
        text += f", {gradient:.1f} s of gradients, {defense:.1f} s of defense"
    if history.skipped:
        text += f"; clients were skipped {history.skipped} times"
    return text + "."


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
