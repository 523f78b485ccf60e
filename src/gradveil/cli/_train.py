"""`gradveil train`: federated training behind a defense."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil import federated
from gradveil._checks import WrongValue, check_count, check_positive
from gradveil._imports import require
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

from ._options import (
    HELPS,
    AsFormat,
    Data,
    Format,
    bar,
    check_usable,
    given,
    option,
    options,
    useless,
    with_fields,
)

OPTIONS = {
    "model": HELPS["model"],
    "defense": "As in Python: 'optimal-noise(scale=0.1)'.",
    "clients": "Clients.",
    "batch_size": "Examples of each client in a round.",
    "partition": "iid, dirichlet or label.",
    "alpha": "Of the Dirichlet partition.",
    "fraction": "Share of clients asked in a round.",
    "optimizer": "The server's: adam, adamw or sgd; default adam, for FedAvg sgd.",
    "lr": "The server's learning rate; default 1e-3, for FedAvg 1.",
    "local_steps": "FedAvg with so many local steps; without: FedSGD.",
    "local_lr": "Learning rate of the local steps.",
    "local_batch_size": "Examples in a local step; the whole batch if omitted.",
    "limit": "Train on the first so many examples.",
    "held_out": "Examples behind them, for evaluation; default 512, of few a fifth.",
    "evaluate_every": "Rounds between evaluations.",
    "sampling": "shuffle or poisson; default poisson with private-noise, else shuffle.",
    "sample_rate": (
        "Each example's chance to be in a batch (Poisson), a public number; default the batch size"
        " over a client's examples, whose number is public then."
    ),
    "target_epsilon": "With private-noise: solve for the noise, end before ε exceeds this.",
    "delta": "δ of that ε.",
    "device": HELPS["device"],
}
"""Fields of the configuration, and what the command says of them."""


@with_fields(TrainingConfig, OPTIONS)
def train(
    context: typer.Context,
    data: Data = "mnist",
    rounds: Annotated[int | None, typer.Option(help="Rounds in all.")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Or: how often the data is seen (default 1).")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of weights, partition, batches and noise. A seeded run protects nobody; if"
            " omitted it is 0, with noise from a secure generator."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for results, curves, weights and checkpoints.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Rounds between checkpoints.")] = 8,
    resume: Annotated[bool, typer.Option(help="Continue from the folder's checkpoint.")] = False,
    format: AsFormat = "table",
    **others: Any,
) -> None:
    """Train a model over clients that defend what they send."""
    if out is not None:
        require("the chart in --out", "gradveil[audit]", "matplotlib")
    _refuse_useless(context)
    chosen = {**given(context, TrainingConfig), "seed": seed or 0}
    with options(
        context, held_out_start="--held-out", loss_fn="--model",
        kind="--partition", targets="--clients", source="--data",
    ):  # fmt: skip
        config = TrainingConfig(**chosen, secure=seed is None)
        check_count(checkpoint_every, "--checkpoint-every")
        examples = _checked_examples(config, out)
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


def _refuse_useless(context: typer.Context) -> None:
    """What would be ignored, as the command is."""
    if context.params["partition"] != "dirichlet":
        useless(context, "without `--partition dirichlet`", ["alpha"])
    if context.params["local_steps"] is None:
        useless(context, "without `--local-steps`", ["local_lr", "local_batch_size"])
    if context.params["held_out"] == 0:
        useless(context, "with `--held-out 0`", ["evaluate_every"])
    if context.params["out"] is None:
        useless(context, "without `--out`", ["checkpoint_every", "resume"])


def _checked_examples(config: TrainingConfig, out: Path | None) -> Split:
    """The data, after all that the options name was built once, before anything is written."""
    with option("--defense", target_epsilon="--target-epsilon"):
        private_defense(config, allow_imports=True)
    with option("--data", "source", "data", held_out="--held-out", held_out_start="--held-out"):
        examples = load_split(config)
    with option("--model", "options", "model", targets="--data"):
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
