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
from gradveil._checks import check_count, check_positive
from gradveil._extras import require
from gradveil.audit.report import check_folder
from gradveil.data import load_dataset
from gradveil.federated import (
    SEEDED,
    RoundMetrics,
    Split,
    TrainingConfig,
    TrainingHistory,
    count_rounds,
    draw_curves,
    initial_model,
    privacy_statement,
    private_defense,
    split_data,
)

from ._loading import check_usable
from ._options import (
    AsFormat,
    Device,
    Format,
    ModelName,
    bar,
    data_source,
    option,
    options,
    own_options,
    useless,
)

NAMES = {
    **own_options(
        "model", "defense", "clients", "batch_size", "rounds", "partition", "alpha", "fraction",
        "optimizer", "lr", "local_steps", "local_lr", "local_batch_size", "limit", "held_out",
        "evaluate_every", "sampling", "sample_rate", "target_epsilon", "delta", "seed", "device",
        "out", "checkpoint_every", "resume",
    ),
    "held_out_start": "--held-out",
    "loss_fn": "--model",
    "name_or_spec": "--model",
    "kind": "--partition",
    "targets": "--clients",
}  # fmt: skip


def train(
    data: Annotated[
        str | None,
        typer.Option(help="A name, a folder, an .npz or hf:NAME.", show_default="mnist"),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Another word for --data.")] = None,
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
    alpha: Annotated[
        float | None, typer.Option(help="Of the Dirichlet partition.", show_default="0.5")
    ] = None,
    fraction: Annotated[float, typer.Option(help="Share of clients asked in a round.")] = 1.0,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="The server's: adam, adamw or sgd.", show_default="adam; with FedAvg sgd"
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="The server's learning rate.", show_default="1e-3; with FedAvg 1"),
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option(help="FedAvg with so many local steps; without: FedSGD.")
    ] = None,
    local_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the local steps.", show_default="0.01")
    ] = None,
    local_batch_size: Annotated[
        int | None,
        typer.Option(help="Examples in a local step.", show_default="the whole batch"),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Train on the first so many examples.")] = None,
    held_out: Annotated[
        int | None,
        typer.Option(
            help="Examples behind them, for evaluation.", show_default="512, of few a fifth"
        ),
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations.", show_default="8")
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="Of each client's batches: shuffle or poisson.",
            show_default="poisson with private-noise",
        ),
    ] = None,
    sample_rate: Annotated[
        float | None,
        typer.Option(
            help="Each example's chance to be in a batch (Poisson), a public number.",
            show_default="batch size over a client's examples, whose number is public then",
        ),
    ] = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(help="With private-noise: solve for the noise, end before ε exceeds this."),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ of that ε.", show_default="1e-5")] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of weights, partition, batches and noise. A seeded run protects nobody.",
            show_default="0, noise from a secure generator",
        ),
    ] = None,
    device: Device = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results, curves, weights and checkpoints.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Rounds between checkpoints.", show_default="8")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the folder's checkpoint.")] = False,
    format: AsFormat = "table",
) -> None:
    """Train a model over clients that defend what they send."""
    if out is not None:
        require("the chart in --out", "gradveil[audit]", "matplotlib")
    useless("--alpha", alpha, partition == "dirichlet", "without `--partition dirichlet`")
    for name, value in (("--local-lr", local_lr), ("--local-batch-size", local_batch_size)):
        useless(name, value, local_steps is not None, "without `--local-steps`")
    useless("--evaluate-every", evaluate_every, held_out != 0, "with `--held-out 0`")
    useless("--checkpoint-every", checkpoint_every, out is not None, "without `--out`")
    said, source = data_source(dataset, data)
    said = said if data is not None or dataset is not None else "--data"
    given = {
        "alpha": alpha, "local_lr": local_lr, "evaluate_every": evaluate_every, "rounds": rounds,
        "delta": delta,
    }  # fmt: skip
    with options({**NAMES, "data": said, "source": said}):
        config = TrainingConfig(
            data=str(source),
            model=model,
            defense=defense,
            clients=clients,
            batch_size=batch_size,
            partition=partition,
            fraction=fraction,
            optimizer=optimizer,
            lr=lr,
            local_steps=local_steps,
            local_batch_size=local_batch_size,
            limit=limit,
            held_out=held_out,
            sampling=sampling,
            sample_rate=sample_rate,
            target_epsilon=target_epsilon,
            seed=0 if seed is None else seed,
            secure=seed is None,
            device=device,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )
        every = 8 if checkpoint_every is None else checkpoint_every
        check_count(every, "--checkpoint-every")
        useless("--resume", resume, out is not None, "without `--out`, the folder to continue in")
        examples = _checked_examples(config, said, out)
        config = dataclasses.replace(config, rounds=_rounds(config, examples, rounds, epochs))
        private = private_defense(config, allow_imports=True) is not None
        useless("--delta", delta, private, "with a defense without (ε, δ)")
        with bar(Console(stderr=True)) as tell:
            history = federated.train(
                config,
                examples,
                out=out,
                resume=resume,
                checkpoint_every=every,
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
    with option("--defense"):
        private_defense(config, allow_imports=True)
    with option(said, "source"):
        data = load_dataset(config.data)
    examples = split_data(config, data)
    with options({"targets": said}), option("--model", "name_or_spec", "options", "model"):
        check_usable(initial_model(config, examples, allow_imports=True))
    if out is not None:
        with option("--out", "out"):
            check_folder(out)
    return examples


def _rounds(config: TrainingConfig, data: Split, rounds: int | None, epochs: float | None) -> int:
    if rounds is not None and epochs is not None:
        raise ValueError(
            "Give `--rounds` or `--epochs`, not both. Found"
            f" `--rounds {rounds}` and `--epochs {epochs}`."
        )
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
