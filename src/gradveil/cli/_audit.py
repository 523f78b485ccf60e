"""`gradveil audit`: for now, what each defense guarantees and costs on one batch, unattacked."""

import json
import time
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn.functional import cross_entropy

from gradveil import (
    Defense,
    GaussianPrior,
    GradientMessage,
    GradientNoise,
    GradientPruning,
    Mechanism,
    Moments,
    NoDefense,
    OptimalNoise,
    OptimalPruning,
    load_dataset,
    measure,
    reconstruction_bound,
    utility,
)
from gradveil.models import build_model

from ._format import Format

NOTE = (
    "Each optimal defense has the utility of the classical one above it. No attacker's mean"
    " squared error per pixel, in normalised units, is below the bound on data of the stated prior;"
    " real images carry more prior knowledge than a Gaussian, and the bound does not count what"
    " noise levels planned from the private batch reveal. ± is the standard error of the bound's"
    " random probes, the same for all rows. No attack was run, and none of these defenses carries"
    " an (ε, δ) guarantee."
)


def audit(
    batch_size: Annotated[int, typer.Option(help="Images in the private batch.")] = 4,
    scale: Annotated[float, typer.Option(help="Standard deviation of the isotropic noise.")] = 0.05,
    ratio: Annotated[
        float, typer.Option(help="Share of entries that magnitude pruning cuts.")
    ] = 0.9,
    seed: Annotated[int, typer.Option(help="Of the random probes and the noise.")] = 0,
    format: Annotated[Format, typer.Option(help="A table to read, or JSON for machines.")] = (
        Format.table
    ),
) -> None:
    """Show what each defense guarantees and costs on embedded MNIST images, at equal utility.

    A demonstration of the core, end to end; attacks are not part of it yet.
    """
    data = load_dataset("mnist")
    inputs, targets = data.batch(0, batch_size)
    prior = GaussianPrior.fit(data.inputs)
    message = GradientMessage(build_model("simple-conv-net"), cross_entropy, targets)
    moments = measure(message, inputs, generator=torch.Generator().manual_seed(seed))
    values = message(inputs)
    rows = []
    defenses = _defenses(values, scale, ratio)
    for name, defense in track(defenses.items(), "defending", console=Console(stderr=True)):
        start = time.perf_counter()
        sent = defense(message, inputs, torch.Generator().manual_seed(seed))
        seconds = time.perf_counter() - start
        mechanism = defense.plan(moments)
        assert isinstance(mechanism, Mechanism)
        first, second = utility(values, mechanism)
        bound = reconstruction_bound(
            message, inputs, mechanism, prior, generator=torch.Generator().manual_seed(seed)
        )
        rows.append(
            {
                "defense": name,
                "utility_first": first,
                "utility_second": second,
                "bound_per_pixel": bound.per_entry,
                "bound_standard_error": bound.standard_error / inputs.numel(),
                "entries_sent": sum(int(s.count_nonzero()) for s in sent.values()),
                "seconds": seconds,
            }
        )
    _show(rows, prior, format)


def _defenses(values: dict[str, torch.Tensor], scale: float, ratio: float) -> dict[str, Defense]:
    moments = Moments.of_values(values, input_size=1)  # utilities do not depend on the inputs' size
    isotropic, magnitude = GradientNoise(scale), GradientPruning(ratio, noise=GradientNoise(scale))
    second = -utility(values, isotropic.plan(moments)).second
    first = utility(values, magnitude.plan(moments)).first
    return {
        "no defense": NoDefense(),
        "noise": isotropic,
        "optimal noise": OptimalNoise(utility_budget=second),
        "pruning + noise": magnitude,
        "optimal pruning + noise": OptimalPruning(utility_budget=first, noise=GradientNoise(scale)),
    }


def _show(rows: list[dict[str, object]], prior: GaussianPrior, format: Format) -> None:
    if format is Format.json:
        print(json.dumps({"prior": prior.name, "rows": rows}))
        return
    table = Table(
        title="Guarantee and cost at equal utility: MNIST, the paper's CNN, untrained",
        caption=f"Prior: {prior.name}.",
    )
    for column in ("defense", "U1", "U2", "bound per pixel", "sent", "seconds"):
        table.add_column(column, justify="left" if column == "defense" else "right")
    for row in rows:
        bound = row["bound_per_pixel"]
        table.add_row(
            str(row["defense"]),
            f"{row['utility_first']:.4g}",
            f"{row['utility_second']:.3g}",
            f"{bound:.3f} ± {row['bound_standard_error']:.3f}" if bound else "no guarantee",
            f"{row['entries_sent']:,}",
            f"{row['seconds']:.2f}",
        )
    console = Console()
    console.print(table)
    console.print(NOTE, highlight=False)
