"""`gradveil bench sensitivity`, `cached`, `federated` and `private`."""

import dataclasses
import json
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gradveil._checks import check_not_negative_count

from .._format import Format
from .._options import option, useless
from ._app import bench
from ._show import check_options, digits, report, require_chart, table_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradveil.bench import Case


@bench.command()
def sensitivity(
    repeats: Annotated[
        int | None,
        typer.Option(help="Interleaved repetitions of each timing.", show_default="7; quick 2"),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(help="Seeds over which qualities are averaged.", show_default="5; quick 1"),
    ] = None,
    reference_probes: Annotated[
        int | None,
        typer.Option(
            help="Probes of the reference, for each example of a batch of 64.",
            show_default="16; quick 4",
        ),
    ] = None,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    cifar: Annotated[str, typer.Option(help="CIFAR-10: embedded, a folder or .npz.")] = "cifar10",
    large: Annotated[bool, typer.Option(help="Add transformers of up to 30 M.")] = False,
    quick: Annotated[bool, typer.Option(help="The first case only, few repetitions.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results and the chart.")] = None,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Share of the optimal bound against cost, for every estimator and the paper's algorithm."""
    require_chart(out)
    from gradveil.bench import (
        SensitivityRow,
        bench_sensitivity,
        contenders,
        draw_sensitivity,
        large_cases,
        paper_cases,
        update_cases,
    )
    from gradveil.data import load_dataset

    useless("--large", large, not quick, "with `--quick`")
    usual = (2, 1, 4) if quick else (7, 5, 16)
    asked = (repeats, draws, reference_probes)
    counts = [one if value is None else value for value, one in zip(asked, usual, strict=True)]
    check_options(out, repeats=counts[0], draws=counts[1], reference_probes=counts[2])
    for name, source in (("--mnist", mnist), ("--cifar", cifar)):
        with option(name, "source"):
            load_dataset(source)
    cases: Iterable[Case] = chain(paper_cases(mnist, cifar), update_cases(mnist))
    cases = islice(cases, 1) if quick else cases
    with Console(stderr=True).status("starting") as status:
        rows = bench_sensitivity(
            chain(cases, large_cases() if large else ()),
            contenders(),
            repeats=counts[0],
            draws=counts[1],
            reference_probes=counts[2],
            progress=status.update,
        )
    report(rows, SensitivityRow, "sensitivity", out, format)
    if out is not None:
        draw_sensitivity(rows, out / "sensitivity.png")


@bench.command()
def cached(
    steps: Annotated[int, typer.Option(help="Training steps.")] = 200,
    batch: Annotated[int, typer.Option(help="Examples in a batch.")] = 64,
    refresh_every: Annotated[int, typer.Option(help="Steps between measurements.")] = 10,
    grade_every: Annotated[int, typer.Option(help="Steps between gradings of the plan.")] = 7,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """What a cached plan keeps of the per-step optimum while a model trains, and its cost."""
    from gradveil.bench import bench_cached

    check_options(
        None, steps=steps, batch=batch, refresh_every=refresh_every, grade_every=grade_every
    )
    data = digits(mnist, batch, "--batch")
    with Console(stderr=True).status("starting") as status:
        result = bench_cached(
            data, steps, batch, refresh_every, grade_every, progress=status.update
        )
    if format is Format.json:
        print(json.dumps({**dataclasses.asdict(result), "mean_share": result.mean_share}, indent=1))
        return
    Console().print(table_of(result.rows, ["step", "cached", "isotropic"]))
    print(
        f"{result.mean_share:.3f} of the optimum in the mean, at {result.time_ratio:.2f} plain"
        f" gradients a step (batches of {batch}, refreshed every {refresh_every} steps)"
    )


@bench.command()
def federated(
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 4,
    batch: Annotated[int, typer.Option(help="Examples of each client.")] = 16,
    refresh_every: Annotated[int, typer.Option(help="Rounds between measurements.")] = 10,
    repeats: Annotated[int, typer.Option(help="Interleaved repetitions of each timing.")] = 5,
    trained: Annotated[int, typer.Option(help="Rounds of training before the second part.")] = 60,
    large: Annotated[bool, typer.Option(help="Add clients with up to 30 M weights.")] = False,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    out: Annotated[Path | None, typer.Option(help="Folder for federated.json.")] = None,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """A defended round over an undefended one, and a client's step over one plain gradient."""
    from gradveil.bench import FederatedRow, bench_federated, round_contenders
    from gradveil.bench import bench_large_clients as bench_large

    check_options(out, clients=clients, batch=batch, refresh_every=refresh_every, repeats=repeats)
    check_not_negative_count(trained, "--trained")
    data = digits(mnist, clients, "--clients")
    with Console(stderr=True).status("starting") as status:
        rows = bench_federated(
            data,
            round_contenders(refresh_every),
            clients=clients,
            batch=batch,
            rounds=refresh_every,
            trained=trained,
            repeats=repeats,
            progress=status.update,
        )
        if large:
            rows += bench_large(batch, repeats, status.update)
    report(rows, FederatedRow, "federated", out, format)


@bench.command()
def private(
    batch: Annotated[int, typer.Option(help="Examples in a batch.")] = 64,
    repeats: Annotated[int, typer.Option(help="Interleaved repetitions of each timing.")] = 15,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    out: Annotated[Path | None, typer.Option(help="Folder for private.json.")] = None,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """A differentially private gradient over a plain one; Opacus beside it, if installed."""
    from gradveil.bench import PrivateRow, bench_private

    check_options(out, batch=batch, repeats=repeats)
    data = digits(mnist, batch, "--batch")
    with Console(stderr=True).status("starting") as status:
        rows = bench_private(data, batch=batch, repeats=repeats, progress=status.update)
    report(rows, PrivateRow, "private", out, format)
