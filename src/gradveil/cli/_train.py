"""`gradveil train`: federated training behind a defense."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil import federated
from gradveil._checks import WrongValue, check_count, check_positive
from gradveil._extras import require
from gradveil.audit.report import check_folder
from gradveil.federated import (
    SEEDED,
    RoundMetrics,
    Split,
    TrainingConfig,
    TrainingHistory,
    count_rounds,
    draw_curves,
    initial_model,
    load_split,
    privacy_statement,
    private_defense,
)

from ._loading import check_usable
from ._options import (
    AsFormat,
    Device,
    Format,
    ModelName,
    bar,
    data_source,
    given,
    option,
    options,
    useless,
)


def train(
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help="A name, a folder, an .npz or hf:NAME.")] = None,
    dataset: Annotated[str, typer.Option(help="Another word for --data.")] = "mnist",
    model: ModelName = None,
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
        str | None,
        typer.Option(help="The server's: adam, adamw or sgd; adam if left, for FedAvg sgd."),
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="The server's rate; 1e-3 if left, for FedAvg 1.")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="FedAvg with so many local steps; without: FedSGD.")
    ] = None,
    local_lr: Annotated[float, typer.Option(help="Learning rate of the local steps.")] = 0.01,
    local_batch_size: Annotated[
        int | None, typer.Option(help="Examples in a local step; the whole batch if left.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Train on the first so many examples.")] = None,
    held_out: Annotated[
        int | None,
        typer.Option(help="Examples behind them, for evaluation; 512, of few a fifth, if left."),
    ] = None,
    evaluate_every: Annotated[int, typer.Option(help="Rounds between evaluations.")] = 8,
    sampling: Annotated[
        str | None,
        typer.Option(help="shuffle or poisson; poisson with private-noise, else shuffle, if left."),
    ] = None,
    sample_rate: Annotated[
        float | None,
        typer.Option(
            help="Each example's chance to be in a batch (Poisson), a public number; if left the"
            " batch size over a client's examples, whose number is public then."
        ),
    ] = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(help="With private-noise: solve for the noise, end before ε exceeds this."),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of that ε.")] = 1e-5,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of weights, partition, batches and noise. A seeded run protects nobody; if left"
            " it is 0, with noise from a secure generator."
        ),
    ] = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results, curves, weights and checkpoints.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 8,
    resume: Annotated[bool, typer.Option(help="Continue from the folder's checkpoint.")] = False,
    format: AsFormat = "table",
) -> None:
    """Train a model over clients that defend what they send."""
    if out is not None:
        require("the chart in --out", "gradveil[audit]", "matplotlib")
    if partition != "dirichlet":
        useless(context, "without `--partition dirichlet`", ["alpha"])
    if local_steps is None:
        useless(context, "without `--local-steps`", ["local_lr", "local_batch_size"])
    if held_out == 0:
        useless(context, "with `--held-out 0`", ["evaluate_every"])
    if out is None:
        useless(context, "without `--out`", ["checkpoint_every", "resume"])
    said, source = data_source(context)
    chosen = {**given(context, TrainingConfig), "data": str(source), "seed": seed or 0}
    with options(
        context, held_out_start="--held-out", loss_fn="--model", name_or_spec="--model",
        kind="--partition", targets="--clients", data=said, source=said,
    ):  # fmt: skip
        config = TrainingConfig(**chosen, secure=seed is None)
        check_count(checkpoint_every, "--checkpoint-every")
        examples = _checked_examples(config, said, out)
        config = dataclasses.replace(config, rounds=_rounds(config, examples, rounds, epochs))
        if private_defense(config, allow_imports=True) is None:
            useless(context, "with a defense without (ε, δ)", ["delta"])
        with bar(Console(stderr=True)) as tell:
            history = federated.train(
                config,
                examples,
                out=out,
                resume=resume,
                checkpoint_every=checkpoint_every,
                on_round=lambda row: tell(
                    _round_words(row, config.secure), row.round / config.rounds
                ),
                allow_imports=True,
            )
    if out is not None:
        draw_curves(history, out / "curves.png")
    show(history, out, format)


def _checked_examples(config: TrainingConfig, said: str, out: Path | None) -> Split:
    """The data, after all that the options name was built once, before anything is written."""
    with option("--defense", target_epsilon="--target-epsilon"):
        private_defense(config, allow_imports=True)
    with option(said, "source", "data", held_out="--held-out", held_out_start="--held-out"):
        examples = load_split(config)
    with option("--model", "name_or_spec", "options", "model", targets=said):
        check_usable(initial_model(config, examples, allow_imports=True))
    if out is not None:
        with option("--out", "out"):
            check_folder(out)
    return examples


def _rounds(config: TrainingConfig, data: Split, rounds: int | None, epochs: float | None) -> int:
    if rounds is not None and epochs is not None:
        found = f"`--rounds {rounds}` and `--epochs {epochs}`"
        raise WrongValue("Options `--rounds` and `--epochs`", "not be given together", found)
    if rounds is not None:
        return rounds
    epochs = 1.0 if epochs is None else epochs
    check_positive(epochs, "--epochs")
    return count_rounds(epochs, len(data.targets), config)


def _round_words(row: RoundMetrics, secure: bool) -> str:
    epsilon = "ε" if secure else "simulated ε"
    seen = (("loss", row.loss), ("accuracy", row.accuracy), (epsilon, row.epsilon))
    return "  ".join(f"{name} {value:.3f}" for name, value in seen if value is not None)


def show(history: TrainingHistory, out: Path | None, format: Format) -> None:
    """A table of some rounds and what they add up to, or everything as JSON."""
    if format == "json":
        print(json.dumps(dataclasses.asdict(history)))
        return
    names = ["round", "loss", "held_out_loss", "accuracy", "utility_first", "utility_second"]
    if history.privacy is not None:
        names.append("epsilon")
    table = Table(title=escape(f"{history.config['defense']}: {history.config['data']}"))
    for name in names:
        simulated = name == "epsilon" and history.simulation
        words = "simulated epsilon" if simulated else name.replace("_", " ")
        table.add_column(words, justify="right")
    every = max(1, len(history.rounds) // 10)
    for row in history.rounds:
        if row.round % every == 0 or row.round == len(history.rounds):
            table.add_row(*[_cell(getattr(row, name)) for name in names])
    Console().print(table)
    sent = sum(row.bytes_sent for row in history.rounds)
    skipped = f"; clients were skipped {history.skipped} times" if history.skipped else ""
    lines: list[str | None] = [
        f"{len(history.rounds)} rounds, {sent / 1e6:.1f} MB sent by clients{skipped}."
    ]
    lines += [privacy_statement(history), history.stopped]
    if history.privacy is None and not history.config["secure"]:
        lines.append(SEEDED)
    if out is not None:
        lines.append(f"Results, curves and weights are in {out}.")
    print("\n".join(line for line in lines if line is not None))


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
