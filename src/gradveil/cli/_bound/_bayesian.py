"""The Bayesian bound of one defense, at one amount or over a sweep, and the Fisher bound."""

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil._checks import check_count
from gradveil._extras import require
from gradveil._files import write_atomically
from gradveil.auditing import (
    BoundPoint,
    BoundStudy,
    draw_sweep,
    make_subject,
    requested_defenses,
)
from gradveil.auditing.report import check_folder, number, plural, prepare_folder
from gradveil.catalog import shown_text
from gradveil.messages import AdaptedModel

from .._format import Format
from .._loading import (
    load_data,
    load_loss,
    load_model,
    output_key,
    split_public,
    typed_defenses,
)
from .._options import data_source, option, options
from .._progress import bar


class Question(NamedTuple):
    """What is asked of which defense, as it was typed."""

    dataset: str | None
    data: Path | None
    model: str | None
    weights: Path | None
    batch_size: int
    defense: str
    seed: int
    device: str
    loss: str | None = None
    output: str | None = None


NOTE = (
    "The bound is a Gaussian reference error, not a guarantee for images: no attacker's mean"
    " squared error per entry, in normalised units, is below it on Gaussian data of the prior. For"
    " a plan from the private batch it counts what the plan reveals. Gain: over isotropic noise of"
    " equal second-order utility (trace form, flat prior, judged by sensitivities that the plan was"
    " not made from)."
)


LEARNED_NOTE = (
    "No attacker's mean squared error per entry, in normalised units, is below the bound if the"
    " denoiser is the best possible and the message linear. No denoiser is, so the bound errs"
    " upwards. Gain: over isotropic noise of equal second-order utility (trace form, flat prior)."
)


def show_bayesian(
    asked: Question, learned: bool, sweep: bool, out: Path | None, format: Format
) -> None:
    """Show the bound, the utility and the gain; with a sweep, write the curve."""
    folder = Path("gradveil-bound") if out is None else out
    if sweep:
        require("a sweep's chart", "gradveil[audit]", "matplotlib")
        with option("--out", "out"):
            check_folder(folder)
    study, title = bound_study(asked)
    if learned:
        with bar(Console(stderr=True)) as progress, option("--prior learned", "samples"):
            study.learn_prior(lambda step, steps, _: progress("learning", step / steps))
    if sweep and not study.has_amount:
        raise ValueError(
            "Option `--sweep` should come with a defense that has a scale or a ratio. Found"
            f" `--defense {asked.defense}`. Leave out --sweep, or name another defense."
        )
    points = _points(study, sweep)
    if sweep:
        prepare_folder(folder)
        _write(points, folder)
    _show(points, title, LEARNED_NOTE if learned else NOTE, format)
    if sweep and format is Format.table:
        print(f"Curve: {folder / 'bound.png'}")


def fisher_facts(asked: Question) -> dict[str, Any]:
    """d / tr J_F of the defense: what the Fisher bound says, as plain values."""
    study, title = bound_study(asked, flat=True)
    point = _points(study, sweep=False)[0]
    return {
        "mse": point.bound.trace_mse if point.bound else 0.0,
        "defense": point.defense,
        "of": title,
        "batches": point.bound.batches if point.bound else None,
        "no_guarantee": point.no_guarantee,
    }


def bound_study(asked: Question, flat: bool = False) -> tuple[BoundStudy, str]:
    """The study of the defense and what it is about; `flat` for no prior."""
    check_count(asked.batch_size, "--batch-size")
    with option("--defense", "defenses"):
        typed = typed_defenses([asked.defense])
        requested_defenses(typed)
    said, source = data_source(asked.dataset, asked.data)
    samples = load_data(said, source, asked.device)
    loss_fn = load_loss(asked.loss, samples)
    name, network = load_model(asked.model, asked.weights, samples, asked.seed, asked.device)
    private, public = split_public(samples, asked.batch_size)
    named = {"model": "--model", "targets": said, "inputs": said, "output": "--output"}
    with options({**named, "loss_fn": "--loss"}):
        subject = make_subject(
            network if asked.output is None else AdaptedModel(network, output_key(asked.output)),
            loss_fn,
            private,
            batches=1,
            public=public,
            normalization=samples,
            local=None,
            name=samples.name,
        )
        subject = dataclasses.replace(subject, prior=None) if flat else subject
        study = BoundStudy(subject, typed[0], asked.seed)
    return study, f"{name} on {samples.name}, {asked.batch_size} examples"


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
    low, high = bound.get("mse_interval") or (None, None)
    ends = {"bound_mse_low": low, "bound_mse_high": high}
    return {
        **{n: row[n] for n in names},
        **{f"bound_{key}": bound.get(key) for key in keys},
        **ends,
    }


def _write(points: Sequence[BoundPoint], out: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(flat_row(points[0])))
    writer.writeheader()
    writer.writerows(flat_row(point) for point in points)
    write_atomically(out / "bound.json", json.dumps([dataclasses.asdict(p) for p in points]))
    write_atomically(out / "bound.csv", text.getvalue())
    draw_sweep(points, out / "bound.png")


def _show(points: Sequence[BoundPoint], title: str, note: str, format: Format) -> None:
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
    batches = f"Bounds are over {plural(over[-1], 'batch')}{_ends(points)}. " if over else ""
    reasons = sorted({point.no_guarantee for point in points if point.no_guarantee})
    why = f" No guarantee here: {'; '.join(reasons)}." if reasons else ""
    formal = f" Formal privacy: {points[0].formal_privacy}."
    console.print(escape(f"{prior}{batches}{note}{why}{formal}"), highlight=False)


def _ends(points: Sequence[BoundPoint]) -> str:
    """The interval of a single bound, from the scatter of its batches."""
    ends = points[0].bound.mse_interval if len(points) == 1 and points[0].bound else None
    return f", which leave an interval of {number(ends[0])} to {number(ends[1])}" if ends else ""


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
