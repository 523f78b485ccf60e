"""`gradveil bench`: costs and qualities, measured side by side in one run."""

import dataclasses
import json
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from gradveil._checks import check_count, check_not_negative_count, check_positive
from gradveil._extras import require
from gradveil._files import write_atomically

from ._format import Format
from ._options import option, own_options, useless

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradveil.bench import Case
    from gradveil.data import Dataset

bench = typer.Typer(help="Measure costs and qualities side by side.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Measure costs and qualities side by side."""


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
    _require_chart(out)
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
    _check(out, repeats=counts[0], draws=counts[1], reference_probes=counts[2])
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
    _report(rows, SensitivityRow, "sensitivity", out, format)
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

    _check(None, steps=steps, batch=batch, refresh_every=refresh_every, grade_every=grade_every)
    data = _images(mnist, batch, "--batch")
    with Console(stderr=True).status("starting") as status:
        result = bench_cached(
            data, steps, batch, refresh_every, grade_every, progress=status.update
        )
    if format is Format.json:
        print(json.dumps({**dataclasses.asdict(result), "mean_share": result.mean_share}, indent=1))
        return
    Console().print(_table(result.rows, ["step", "cached", "isotropic"]))
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

    _check(out, clients=clients, batch=batch, refresh_every=refresh_every, repeats=repeats)
    check_not_negative_count(trained, "--trained")
    data = _images(mnist, clients, "--clients")
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
    _report(rows, FederatedRow, "federated", out, format)


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

    _check(out, batch=batch, repeats=repeats)
    data = _images(mnist, batch, "--batch")
    with Console(stderr=True).status("starting") as status:
        rows = bench_private(data, batch=batch, repeats=repeats, progress=status.update)
    _report(rows, PrivateRow, "private", out, format)


@bench.command()
def attack(
    budget: Annotated[
        list[float] | None, typer.Option(help="Seconds for each batch; repeatable. 5, 20, 60.")
    ] = None,
    batches: Annotated[
        int | None, typer.Option(help="Batches, 100 images apart.", show_default="3; quick 1")
    ] = None,
    images: Annotated[int, typer.Option(help="Images in a batch.")] = 4,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    quick: Annotated[bool, typer.Option(help="One batch, 2 seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results and the chart.")] = None,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Steps per second of each attack, and the PSNR it reaches in a given time."""
    _require_chart(out)
    require("the benchmark of attacks", "gradveil[audit]", "scipy")
    from gradveil.bench import AttackRow, attack_contenders, bench_attack, draw_attacks

    budgets = budget or ([2.0] if quick else [5.0, 20.0, 60.0])
    count = batches if batches is not None else 1 if quick else 3
    _check(out, batches=count, images=images)
    for seconds in budgets:
        check_positive(seconds, "--budget")
    _images(mnist, images, "--images")
    data = _images(mnist, 100 * (count - 1) + images, "--batches")
    with Console(stderr=True).status("starting") as status:
        rows = bench_attack(
            data,
            attack_contenders(),
            starts=range(0, 100 * count, 100),
            images=images,
            budgets=budgets,
            progress=status.update,
        )
    _report(rows, AttackRow, "attack", out, format)
    if out is not None:
        draw_attacks(rows, out / "attack.png")


def _check(out: Path | None, **counts: int) -> None:
    """Require counts of at least 1, and a folder that can be written."""
    from gradveil.auditing.report import check_folder

    for name, count in counts.items():
        check_count(count, own_options(name)[name])
    if out is not None:
        with option("--out", "out"):
            check_folder(out)


def _images(source: str, needed: int, name: str) -> "Dataset":
    """Images of MNIST's size, enough of them."""
    from gradveil.data import load_dataset

    with option("--mnist", "source"):
        data = load_dataset(source)
        if data.inputs.shape[1:] != (1, 28, 28):
            raise ValueError(
                "Parameter `source` should hold images of shape (1, 28, 28). Found"
                f" {tuple(data.inputs.shape[1:])}."
            )
    if needed > len(data):
        raise ValueError(
            f"Option `{name}` should need at most the {len(data)} images of `{data.name}`. Found"
            f" that {needed} are needed."
        )
    return data


def _require_chart(out: Path | None) -> None:
    if out is not None:
        require("the chart in --out", "gradveil[audit]", "matplotlib")


def _report(
    rows: list,  # type: ignore[type-arg]
    kind: type,
    name: str,
    out: Path | None,
    format: Format,
) -> None:
    """Print the rows, and keep them as `name`.json in the folder."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / f"{name}.json", _as_json(rows))
    if format is Format.json:
        print(_as_json(rows))
    else:
        Console().print(_table(rows, [field.name for field in dataclasses.fields(kind)]))


def _as_json(rows: list) -> str:  # type: ignore[type-arg]
    return json.dumps(
        {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "rows": [dataclasses.asdict(row) for row in rows],
        },
        indent=1,
    )


def _table(rows: list, columns: list[str]) -> Table:  # type: ignore[type-arg]
    table = Table()
    for column in columns:
        table.add_column(
            column.replace("_", " "), justify="left" if column in columns[:1] else "right"
        )
    for row in rows:
        table.add_row(*[_cell(getattr(row, column)) for column in columns])
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
