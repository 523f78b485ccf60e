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
from rich.markup import escape
from rich.table import Table
from torch.nn.functional import cross_entropy

from gradveil._checks import check_count
from gradveil._extras import require
from gradveil._files import write_atomically
from gradveil.auditing import BoundPoint, BoundStudy, draw_sweep, make_subject, requested_defenses
from gradveil.auditing.report import check_folder, number, plural, prepare_folder
from gradveil.catalog import shown_text

from ._format import Format
from ._loading import load_data, load_model, split_public, typed_defenses
from ._options import data_source, option, options, useless
from ._progress import bar

NOTE = (
    "No attacker's mean squared error per entry, in normalised units, is below the bound on data of"
    " the prior, where it is a guarantee. It does not count what noise levels planned from the"
    " private batch reveal. Gain: over isotropic noise of equal second-order utility (trace form,"
    " flat prior, judged by sensitivities that the plan was not made from)."
)


def bound(
    dataset: Annotated[
        str | None,
        typer.Option(help="mnist, cifar10 (embedded), or hf:NAME.", show_default="mnist"),
    ] = None,
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
    out: Annotated[
        Path | None, typer.Option(help="Folder for a sweep.", show_default="gradveil-bound")
    ] = None,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Show the bound, the utility and the gain over isotropic noise, without attacking."""
    check_count(batch_size, "--batch-size")
    useless("--out", out, sweep, "without `--sweep`")
    folder = Path("gradveil-bound") if out is None else out
    with option("--defense", "defenses"):
        typed = typed_defenses([defense])
        requested_defenses(typed)
    if sweep:
        require("a sweep's chart", "gradveil[audit]", "matplotlib")
        with option("--out", "out"):
            check_folder(folder)
    said, source = data_source(dataset, data)
    samples = load_data(said, source, device)
    name, network = load_model(model, weights, samples, seed, device)
    private, public = split_public(samples, batch_size)
    with options({"model": "--model", "targets": said, "inputs": said}):
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
        study = BoundStudy(subject, typed[0], seed)
    if sweep and not study.has_amount:
        raise ValueError(
            "Option `--sweep` should come with a defense that has a scale or a ratio. Found"
            f" `--defense {defense}`. Leave out --sweep, or name another defense."
        )
    points = _points(study, sweep)
    if sweep:
        prepare_folder(folder)
        _write(points, folder)
    _show(points, f"{name} on {samples.name}, {batch_size} examples", format)
    if sweep and format is Format.table:
        print(f"Curve: {folder / 'bound.png'}")


def _points(study: BoundStudy, sweep: bool) -> list[BoundPoint]:
    variants = study.sweep() if sweep else [study.defense]
    points = []
    with bar(Console(stderr=True)) as progress:
        for place, variant in enumerate(variants):
            progress("bound", place / len(variants))
            points.append(study.point(variant))
    return points


def flat_row(point: BoundPoint) -> dict[str, Any]:
    """One level of names, for CSV files and tables."""
    row = dataclasses.asdict(point)
    bound = row.pop("bound") or {}
    names = [field.name for field in dataclasses.fields(BoundPoint)]
    del names[names.index("bound")]
    keys = ("method", "prior", "mse", "mse_standard_error", "trace_mse", "psnr_ceiling", "batches")
    return {**{n: row[n] for n in names}, **{f"bound_{key}": bound.get(key) for key in keys}}


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
    table = Table(title=escape(title), title_justify="left")
    for column in ("defense", "U1", "U2", "bound", "trace", "dB ≤", "gain"):
        left = column == "defense"
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    for point in points:
        table.add_row(*_cells(point))
    console = Console()
    console.print(table)
    priors = sorted({point.bound.prior for point in points if point.bound})
    prior = f"Prior: {', '.join(priors)}. " if priors else ""
    over = sorted({point.bound.batches for point in points if point.bound})
    batches = f"Bounds are over {plural(over[-1], 'batch')}. " if over else ""
    reasons = sorted({point.no_guarantee for point in points if point.no_guarantee})
    why = f" No guarantee here: {'; '.join(reasons)}." if reasons else ""
    formal = f" Formal privacy: {points[0].formal_privacy}."
    console.print(escape(f"{prior}{batches}{NOTE}{why}{formal}"), highlight=False)


def _cells(point: BoundPoint) -> list[str]:
    bound, gain = point.bound, point.gain_over_isotropic
    return [
        escape(shown_text(point.defense)),
        number(point.utility_first),
        number(point.utility_second),
        f"{number(bound.mse)}{'' if bound.holds else ' †'}" if bound else "no guarantee",
        number(bound.trace_mse) if bound else "-",
        number(bound.psnr_ceiling) if bound else "-",
        "-" if gain is None else f"{number(gain)}×",
    ]
