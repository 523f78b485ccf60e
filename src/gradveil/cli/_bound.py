"""`gradveil bound`: what the theory says of one defense on one batch, in seconds."""

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from gradveil._files import write_atomically
from gradveil.auditing import BoundPoint, BoundStudy, draw_sweep, make_subject
from gradveil.auditing.report import number, prepare_folder
from gradveil.catalog import shown_text

from ._format import Format
from ._loading import load_data, load_model, split_public, typed_defenses
from ._progress import bar

NOTE = (
    "No attacker's mean squared error per entry, in normalised units, is below the bound on data of"
    " the prior. It does not count what noise levels planned from the private batch reveal. Gain:"
    " over isotropic noise of equal second-order utility (trace form, flat prior)."
)


def bound(
    dataset: Annotated[str, typer.Option(help="mnist, cifar10 (embedded), or hf:NAME.")] = "mnist",
    data: Annotated[Path | None, typer.Option(help="Your own: an .npz file or folder.")] = None,
    model: Annotated[str | None, typer.Option(help="A name, or package.module:factory.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A state dict (no code is run).")] = None,
    batch_size: Annotated[int, typer.Option(help="Examples in the private batch.")] = 4,
    defense: Annotated[
        str, typer.Option(help="As 'optimal-noise(scale=0.1)'; amounts may be left out.")
    ] = "optimal-noise",
    sweep: Annotated[bool, typer.Option(help="The curve over scales or ratios.")] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="As cpu or cuda:0.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for a sweep.")] = Path("gradveil-bound"),
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Show the bound, the utility and the gain over isotropic noise, without attacking."""
    if sweep:
        prepare_folder(out)
    samples = load_data(dataset, data, device)
    name, network = load_model(model, weights, samples, seed, device)
    private, public = split_public(samples, batch_size)
    subject = make_subject(
        network,
        cross_entropy,
        private,
        batches=1,
        public=public,
        normalization=samples,
        local=None,
        name=samples.name,
    )
    study = BoundStudy(subject, typed_defenses([defense])[0], seed)
    if sweep and not study.has_amount:
        raise ValueError(
            "Option `--sweep` should come with a defense that has a scale or a ratio. Found"
            f" `--defense {defense}`. Leave out --sweep, or name another defense."
        )
    variants = study.sweep() if sweep else [study.defense]
    points = []
    with bar(Console(stderr=True)) as progress:
        for place, variant in enumerate(variants):
            progress("bound", place / len(variants))
            points.append(study.point(variant))
    if sweep:
        _write(points, out)
    _show(points, f"{name} on {samples.name}, {batch_size} examples", format)
    if sweep and format is Format.table:
        print(f"Curve: {out / 'bound.png'}")


def flat_row(point: BoundPoint) -> dict[str, Any]:
    """One level of names, for CSV files and tables."""
    row = dataclasses.asdict(point)
    found = row.pop("bound") or {}
    names = [field.name for field in dataclasses.fields(BoundPoint)]
    del names[names.index("bound")]
    keys = ("method", "prior", "mse", "mse_standard_error", "trace_mse", "psnr_ceiling")
    return {**{n: row[n] for n in names}, **{f"bound_{key}": found.get(key) for key in keys}}


def _write(points: Sequence[BoundPoint], out: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(flat_row(points[0])))
    writer.writeheader()
    writer.writerows(flat_row(point) for point in points)
    write_atomically(out / "bound.json", json.dumps([dataclasses.asdict(p) for p in points]))
    write_atomically(out / "bound.csv", text.getvalue())
    draw_sweep(points, out / "bound.png")


def _show(points: Sequence[BoundPoint], title: str, format: Format) -> None:
    if format is Format.json:
        print(json.dumps([dataclasses.asdict(point) for point in points], indent=1))
        return
    table = Table(title=title, title_justify="left")
    for column in ("defense", "U1", "U2", "bound", "trace", "dB ≤", "gain"):
        left = column == "defense"
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    for point in points:
        table.add_row(*_cells(point))
    console = Console()
    console.print(table)
    priors = sorted({point.bound.prior for point in points if point.bound})
    prior = f"Prior: {', '.join(priors)}. " if priors else ""
    console.print(f"{prior}{NOTE} Formal privacy: {points[0].formal_privacy}.", highlight=False)


def _cells(point: BoundPoint) -> list[str]:
    found, gain = point.bound, point.gain_over_isotropic
    return [
        shown_text(point.defense),
        number(point.utility_first),
        number(point.utility_second),
        number(found.mse) if found else "no guarantee",
        number(found.trace_mse) if found else "-",
        number(found.psnr_ceiling) if found else "-",
        "-" if gain is None else f"{number(gain)}×",
    ]
