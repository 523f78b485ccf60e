"""`gradveil bound`: what the theory says of a defense or of private training, in seconds."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil._checks import WrongValue, check_count
from gradveil._extras import require
from gradveil._files import write_atomically
from gradveil.attacks import IdentificationReport
from gradveil.audit import (
    BoundPoint,
    BoundResult,
    BoundStudy,
    Federation,
    audited,
    draw_sweep,
    parse_defense,
)
from gradveil.audit.report import check_folder, csv_text, number, plural, share
from gradveil.catalog import Spec, spec_of
from gradveil.privacy import PrivacyAccount, recognition_bound, renyi_bound
from gradveil.scoring import Interval

from ._loading import load_subject, typed
from ._options import (
    AsFormat,
    DataPath,
    DatasetName,
    Device,
    Format,
    LossName,
    ModelName,
    OutputKey,
    Seed,
    WeightsPath,
    bar,
    option,
    options,
    useless,
)

MODEL = ("dataset", "data", "model", "weights", "loss", "output", "batch_size", "defense")
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


def bound(
    context: typer.Context,
    kind: Annotated[
        Literal["bayesian", "recognition", "renyi", "fisher", "candidates"],
        typer.Option(
            help="bayesian, fisher, candidates (a defense); recognition, renyi (private training)."
        ),
    ] = "bayesian",
    dataset: DatasetName = "mnist",
    data: DataPath = None,
    model: ModelName = None,
    weights: WeightsPath = None,
    loss: LossName = None,
    output: OutputKey = None,
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
        int | None, typer.Option(help="candidates: how many; if left 256, or all.")
    ] = None,
    trials: Annotated[int, typer.Option(help="candidates: messages.")] = 64,
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
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for a sweep.")] = Path("gradveil-bound"),
    format: AsFormat = "table",
) -> None:
    """Show what no attacker can do, with its assumptions, without attacking."""
    others = {name for every in TAKES.values() for name in every} - {*TAKES[kind]}
    useless(context, f"with `--kind {kind}`", sorted(others))
    if not sweep:
        useless(context, "without `--sweep`", ["out"])
    if kind in ("recognition", "renyi"):
        account = {name: context.params[name] for name in ACCOUNT}
        with options(context):
            _show_statement(kind, _of_releases(kind, guess, diameter, account), format)
        return
    if sweep:
        require("a sweep's chart", "gradveil[audit]", "matplotlib")
        with option("--out", "out"):
            check_folder(out)
    check_count(batch_size, "--batch-size")
    with option("--defense", "defenses"):
        (spec,) = typed("defense", [defense])
        parse_defense(spec)  # for its errors, before any work
    subject, named = load_subject(context, batch_size)
    title = f"{subject.model_name} on {subject.name}, {batch_size} examples"
    with options(context, **named):
        case = audited(subject, Federation())
        study = BoundStudy(
            dataclasses.replace(case, prior=None) if kind == "fisher" else case, spec, seed
        )
    if sweep and not study.sweep():
        expected = "come with a defense that has a scale or a ratio"
        advice = "Leave it out, or name another defense."
        raise WrongValue("--sweep", expected, f"`--defense {defense}`", advice)
    if kind == "fisher":
        _show_statement(kind, _fisher(study, title), format)
    elif kind == "candidates":
        with bar(Console(stderr=True)) as progress, options(context):
            progress("candidates", 0.0)
            found = study.from_candidates(candidates, trials)
        facts = _candidates(found) | {"defense": spec_of(study.defense), "of": title}
        _show_statement(kind, facts, format)
    else:
        _bayesian(study, title, prior == "learned", out if sweep else None, format)


def _of_releases(
    kind: str, guess: float | None, diameter: float, account: dict[str, Any]
) -> dict[str, Any]:
    """The largest probability of success, or the smallest error of an unbiased attacker."""
    needed = {"--noise-multiplier": account["noise_multiplier"]}
    if kind == "recognition":
        needed = {"--guess": guess, **needed}
    for name, value in needed.items():
        if value is None:
            what = "the best blind guess's chance" if name == "--guess" else "noise over the clip"
            raise WrongValue(name, f"be given: {what}, as 0.1", "none")
    if kind == "recognition":
        chance = guess or 0.0
        found = {"probability": recognition_bound(chance, **account), "guess": chance}
    else:
        found = {"mse": renyi_bound(diameter, **account), "diameter": diameter}
    stated = PrivacyAccount(account["noise_multiplier"], account["sample_rate"], delta=0.5)
    return {**found, **account, "sampling": stated.sampling}


def _fisher(study: BoundStudy, title: str) -> dict[str, Any]:
    """d / tr J_F of the defense."""
    (point,) = _points(study, sweep=False)
    return {
        "mse": point.bound.unmatched_mse if point.bound else 0.0,
        "defense": point.defense,
        "of": title,
        "batches": point.bound.batches if point.bound else None,
        "no_guarantee": point.no_guarantee,
    }


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
    rows = [dataclasses.asdict(point) for point in points]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "bound.json", json.dumps(rows))
        write_atomically(folder / "bound.csv", csv_text([_flat(point) for point in points]))
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


def _flat(point: BoundPoint) -> dict[str, Any]:
    """One level of names, the same with and without a bound."""
    row = dataclasses.asdict(point)
    found = row.pop("bound") or {}
    return row | {f"bound_{f.name}": found.get(f.name) for f in dataclasses.fields(BoundResult)}


def _show_points(points: Sequence[BoundPoint], title: str, note: str) -> None:
    table = Table(title=escape(title), title_justify="left")
    for column in ("defense", "U1", "U2", "bound", "trace", "dB ≤", "gain"):
        left = column == "defense"
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    for point in points:
        table.add_row(*_cells(point))
    console = Console()
    console.print(table)
    found = [point.bound for point in points if point.bound]
    said = []
    if found:
        ends = found[0].mse_interval if len(points) == 1 else None
        within = f", which leave {number(ends[0])} to {number(ends[1])}" if ends else ""
        said.append(f"Prior: {', '.join(sorted({one.prior for one in found}))}.")
        said.append(f"Bounds are over {plural(max(o.batches for o in found), 'batch')}{within}.")
    said.append(note)
    reasons = sorted({point.no_guarantee for point in points if point.no_guarantee})
    if reasons:
        said.append(f"No guarantee here: {'; '.join(reasons)}.")
    said.append(f"Formal privacy: {points[0].formal_privacy}.")
    console.print(escape(" ".join(said)), highlight=False)


def _cells(point: BoundPoint) -> list[str]:
    bound, gain = point.bound, point.gain_over_isotropic
    shown = str(Spec.parse(point.defense).rounded())
    cells = [shown, number(point.utility_first), number(point.utility_second)]
    if bound is None:
        cells += ["no guarantee", "-", "-"]
    else:
        values = (bound.mse, bound.trace_mse, bound.psnr_ceiling)
        mark = "" if bound.holds else " †"
        cells += ["-" if value is None else f"{number(value)}{mark}" for value in values]
    return [escape(cell) for cell in (*cells, "-" if gain is None else f"{number(gain)}×")]
