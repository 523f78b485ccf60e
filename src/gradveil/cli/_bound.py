"""`gradveil bound`: what the theory says of a defense or of private training, in seconds."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil._checks import WrongValue, check_count
from gradveil._files import write_atomically
from gradveil._imports import require
from gradveil.attacks import IdentificationReport
from gradveil.audit import BoundPoint, BoundStudy, Federation, checked_subject, draw_sweep
from gradveil.audit.report import check_folder, number, plural, share
from gradveil.catalog import spec_of
from gradveil.privacy import PrivacyAccount, recognition_bound, renyi_bound
from gradveil.scoring import Interval

from ._options import (
    HELPS,
    AsFormat,
    Data,
    Format,
    SubjectOptions,
    bar,
    load_subject,
    option,
    option_of,
    options,
    typed,
    useless,
    with_fields,
)

MODEL = ("data", "model", "weights", "loss", "output", "batch_size", "defense")
ACCOUNT = ("noise_multiplier", "sample_rate", "steps")
TAKES = {
    "bayesian": (*MODEL, "prior", "sweep", "out"),
    "fisher": MODEL,
    "candidates": (*MODEL, "candidates", "trials"),
    "recognition": ("guess", *ACCOUNT),
    "renyi": ("diameter", *ACCOUNT),
}
"""The options that each kind reads, besides seed, device and format."""

NOTE = (
    "The bound is a Gaussian reference error, not a guarantee for images: no attacker's mean"
    " squared error per entry, in normalised units, is below it on Gaussian data of the prior, also"
    " after the examples of a batch were matched to the truth. For a plan from the private batch it"
    " counts what the plan reveals. Gain: over isotropic noise of equal second-order utility (trace"
    " form, flat prior, judged by sensitivities that the plan was not made from)."
)
LEARNED_NOTE = (
    "No attacker's mean squared error per entry, in normalised units, is below the bound if the"
    " denoiser is the best possible and the message linear. No denoiser is, so the bound errs"
    " upwards. Gain: over isotropic noise of equal second-order utility (trace form, flat prior)."
)
HEADLINES = {
    "recognition": "No attacker succeeds with a probability above {}.",
    "renyi": "No unbiased attacker has a mean squared error per entry below {}.",
    "fisher": "No unbiased attacker has a mean squared error per entry below {}.",
    "candidates": (
        "No attacker's mean squared error per entry is below {} in the mean over the data."
    ),
}
ASSUMPTIONS = {
    "recognition": (
        "Any attacker and any data: he may know everything but one example, the model and all"
        " releases included. Each example's gradient is clipped to the norm C, the noise has"
        " standard deviation z C in the same norm, shapes are public, and examples are sampled as"
        " stated, at a rate that is public or made from a public number of them. The guess is the"
        " best blind attacker's chance; if it is larger, so is the bound."
    ),
    "renyi": (
        "Attackers whose estimate is unbiased for every example, which none with a prior is: such"
        " attackers may have a smaller error. Clip, noise and sampling as for recognition; one"
        " example replaced by any other. Theorem 1 of Guo et al., 2022."
    ),
    "fisher": (
        "Attackers whose estimate is unbiased near this input, which none with a prior is: such"
        " attackers may have a smaller error. Place by place: examples are not matched to the truth"
        " first. d / tr J_F, with the mean of tr J_F over batches, in normalised units. Hannun et"
        " al., 2021; Theorem 2 of Guo et al., 2022."
    ),
    "candidates": (
        "Any attacker, on real data: he is compared with one who is told N candidates that hold the"
        " truth, and the rest of the batch. Candidates are independent examples of the population"
        " that the private ones come from{label}. The error is a mean over that population, not a"
        " promise for each example, {places}in normalised units, with a 95 % interval from the"
        " trials. More candidates bring the bound closer to what an attacker can do, and never"
        " above it."
    ),
}


@with_fields(SubjectOptions, HELPS)
def bound(
    context: typer.Context,
    kind: Annotated[
        Literal["bayesian", "recognition", "renyi", "fisher", "candidates"],
        typer.Option(
            help="bayesian, fisher, candidates (a defense); recognition, renyi (private training)."
        ),
    ] = "bayesian",
    data: Data = "mnist",
    batch_size: Annotated[int, typer.Option(help="Examples in the private batch.")] = 4,
    defense: Annotated[
        str, typer.Option(help="As 'optimal-noise(scale=0.1)'; amounts may be left out.")
    ] = "optimal-noise",
    prior: Annotated[
        Literal["gaussian", "learned"],
        typer.Option(help="bayesian: gaussian, or learned (a denoiser; minutes)."),
    ] = "gaussian",
    sweep: Annotated[bool, typer.Option(help="The curve over scales or ratios.")] = False,
    candidates: Annotated[
        int | None, typer.Option(help="candidates: how many; default 256, or all.")
    ] = None,
    trials: Annotated[int, typer.Option(help="candidates: messages.")] = 64,
    out: Annotated[Path, typer.Option(help="Folder for a sweep.")] = Path("gradveil-bound"),
    format: AsFormat = "table",
    guess: Annotated[
        float | None, typer.Option(help="recognition: the best blind guess's chance, as 1/N.")
    ] = None,
    diameter: Annotated[
        float, typer.Option(help="renyi: the range of an entry of the input.")
    ] = 1.0,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise over the clip of each example's gradient.")
    ] = None,
    sample_rate: Annotated[
        float, typer.Option(help="Each example's chance to be in a step (Poisson).")
    ] = 1.0,
    steps: Annotated[int, typer.Option(help="Releases.")] = 1,
    **others: Any,
) -> None:
    """Show what no attacker can do, with its assumptions, without attacking."""
    unread = {name for every in TAKES.values() for name in every} - {*TAKES[kind]}
    useless(context, f"with `--kind {kind}`", sorted(unread))
    if not sweep:
        useless(context, "without `--sweep`", ["out"])
    if kind in ("recognition", "renyi"):
        _show_statement(kind, _of_releases(context, kind), format)
        return
    if sweep:
        require("a sweep's chart", "gradveil[audit]", "matplotlib")
        with option("--out", "out"):
            check_folder(out)
    study, title = _study(context, kind)
    if kind == "bayesian":
        _bayesian(study, title, prior == "learned", out if sweep else None, format)
        return
    if kind == "fisher":
        (point,) = _points(study, sweep=False)
        facts = {
            "mse": point.bound.unmatched_mse if point.bound else 0.0,
            "batches": point.bound.batches if point.bound else None,
            "no_guarantee": point.no_guarantee,
        }
    else:
        with bar(Console(stderr=True)) as progress, options(context):
            progress("candidates", 0.0)
            facts = _candidates(study.from_candidates(candidates, trials))
    _show_statement(kind, {"defense": spec_of(study.defense), "of": title, **facts}, format)


def _of_releases(context: typer.Context, kind: str) -> dict[str, Any]:
    """The largest probability of success, or the smallest error of an unbiased attacker."""
    given = {name: context.params[name] for name in TAKES[kind]}
    for name, value in given.items():
        if value is None:
            raise WrongValue(option_of(name), "be given, as 0.1", "none")
    with options(context):
        if kind == "recognition":
            found = {"probability": recognition_bound(**given)}
        else:
            found = {"mse": renyi_bound(**given)}
        account = PrivacyAccount(given["noise_multiplier"], given["sample_rate"], delta=0.5)
    return {**found, **given, "sampling": account.sampling}


def _study(context: typer.Context, kind: str) -> tuple[BoundStudy, str]:
    """The defense on the data that the options name, and what both are called."""
    batch_size, defense = context.params["batch_size"], context.params["defense"]
    check_count(batch_size, "--batch-size")
    with option("--defense", "defenses"):
        (spec,) = typed("defense", [defense])
    subject, named = load_subject(context, batch_size)
    with options(context, **named):
        case = checked_subject(subject, Federation())
        case = replace(case, prior=None) if kind == "fisher" else case
        study = BoundStudy(case, spec, context.params["seed"])
    if context.params["sweep"] and not study.sweep():
        expected = "come with a defense that has a scale or a ratio"
        advice = "Leave it out, or name another defense."
        raise WrongValue("--sweep", expected, f"`--defense {defense}`", advice)
    return study, f"{subject.model_name} on {subject.name}, {batch_size} examples"


def _candidates(found: IdentificationReport) -> dict[str, Any]:
    """The error of the attacker with candidates, over their number."""

    def ends(name: str, value: Interval) -> dict[str, float]:
        return {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}

    trend = [
        {
            "candidates": point.candidates,
            **ends("mse", point.error),
            **ends("recognition", point.rate),
            "blind_mse": point.prior_error.mean,
        }
        for point in found.trend
    ]
    matched = "place by place and not after the batch's examples were matched to the truth, "
    return {
        **trend[-1],
        "trials": len(found.trials),
        "batch_size": found.batch_size,
        "one_class": found.one_class,
        "no_guarantee": found.reason,
        "trend": trend,
        "assumptions": ASSUMPTIONS["candidates"].format(
            label=", of one class: the attacker knows the label" if found.one_class else "",
            places=matched if found.batch_size > 1 else "",
        ),
    }


def _show_statement(kind: str, facts: dict[str, Any], format: Format) -> None:
    """The number, what it is about, and what it assumes."""
    facts = {"kind": kind, "assumptions": ASSUMPTIONS[kind], **facts}
    if format == "json":
        print(json.dumps(facts, indent=1))
        return
    console = Console()
    value = number(facts.get("probability", facts.get("mse")))
    reason = facts.get("no_guarantee")
    line = f"No guarantee ({value}): {reason}." if reason else HEADLINES[kind].format(value)
    if "trend" in facts:
        console.print(_trend(facts))
        line = f"{line} {facts['trials']} trials."
    console.print(escape(line), highlight=False)
    shown = ("defense", "of", "guess", "diameter", *ACCOUNT, "sampling", "batches", "batch_size")
    known = [(name.replace("_", " "), facts[name]) for name in shown if name in facts]
    about = ", ".join(f"{name} {found}" for name, found in known if found is not None)
    console.print(escape(f"Of: {about}."), highlight=False)
    console.print(escape(f"Assumed: {facts['assumptions']}"), highlight=False)


def _trend(facts: dict[str, Any]) -> Table:
    table = Table(title=escape(f"{facts['defense']}: {facts['of']}"), title_justify="left")
    for column in ("candidates", "error ≥", "interval", "recognised ≤", "without a message"):
        table.add_column(column, justify="right")
    for point in facts["trend"]:
        ends = f"{number(point['mse_low'])} to {number(point['mse_high'])}"
        error, blind = number(point["mse"]), number(point["blind_mse"])
        table.add_row(str(point["candidates"]), error, ends, share(point["recognition"]), blind)
    return table


def _bayesian(
    study: BoundStudy, title: str, learned: bool, folder: Path | None, format: Format
) -> None:
    """The bound, the utility and the gain; with a folder, the curve over amounts."""
    if learned:
        with bar(Console(stderr=True)) as progress, option("--prior learned", "samples"):
            study.learn_prior(lambda step, steps, _: progress("learning", step / steps))
    points = _points(study, sweep=folder is not None)
    rows = [asdict(point) for point in points]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "bound.json", json.dumps(rows))
        draw_sweep(points, folder / "bound.png")
    if format == "json":
        print(json.dumps(rows, indent=1))
        return
    _show_points(points, title, LEARNED_NOTE if learned else NOTE)
    if folder is not None:
        print(f"Curve: {folder / 'bound.png'}")


def _points(study: BoundStudy, sweep: bool) -> list[BoundPoint]:
    variants = study.sweep() if sweep else [study.defense]
    points = []
    with bar(Console(stderr=True)) as progress:
        for place, variant in enumerate(variants):
            progress("bound", place / len(variants))
            points.append(study.point(variant))
    return points


def _show_points(points: Sequence[BoundPoint], title: str, note: str) -> None:
    table = Table(title=escape(title), title_justify="left")
    for column in ("defense", "U1", "U2", "bound", "trace", "in dB", "gain"):
        left = column == "defense"
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    for point in points:
        table.add_row(*_cells(point))
    console = Console()
    console.print(table)
    found = [point.bound for point in points if point.bound]
    reasons = sorted({point.no_guarantee for point in points if point.no_guarantee})
    said = [note]
    if found:
        ends = found[0].mse_interval if len(points) == 1 else None
        within = f", which leave {number(ends[0])} to {number(ends[1])}" if ends else ""
        over = plural(max(one.batches for one in found), "batch")
        said.insert(0, f"Prior: {', '.join(sorted({one.prior for one in found}))}.")
        said.insert(1, f"Bounds are over {over}{within}.")
    if reasons:
        said.append(f"No guarantee here: {'; '.join(reasons)}.")
    said.append(f"Formal privacy: {points[0].formal_privacy}.")
    console.print(escape(" ".join(said)), highlight=False)


def _cells(point: BoundPoint) -> list[str]:
    bound, gain = point.bound, point.gain_over_isotropic
    cells = [point.defense, number(point.utility_first), number(point.utility_second)]
    if bound is None:
        cells += ["no guarantee", "-", "-"]
    else:
        values = (bound.mse, bound.trace_mse, bound.mse_decibels)
        mark = "" if bound.holds else " †"
        cells += ["-" if value is None else f"{number(value)}{mark}" for value in values]
    return [escape(cell) for cell in (*cells, "-" if gain is None else f"{number(gain)}×")]
