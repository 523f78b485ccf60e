"""`gradveil bound`: what the theory says of a defense or of private training, in seconds."""

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil._checks import check_count
from gradveil._extras import require
from gradveil._files import write_atomically
from gradveil.attacks import CandidateBound
from gradveil.audit import (
    BoundPoint,
    BoundStudy,
    Federation,
    Subject,
    audited,
    draw_sweep,
    parse_defense,
)
from gradveil.audit.report import check_folder, number, plural, prepare_folder, share
from gradveil.catalog import Spec, spec_of
from gradveil.defenses import Defense
from gradveil.privacy import PrivacyAccount, recognition_bound, renyi_bound
from gradveil.scoring import Interval

from ._loading import (
    load_data,
    load_loss,
    load_model,
    output_key,
    split_public,
    typed_defenses,
)
from ._options import Format, bar, data_source, option, options, own_options, useless


class Kind(str, Enum):
    """The kinds of statements."""

    bayesian = "bayesian"
    recognition = "recognition"
    renyi = "renyi"
    fisher = "fisher"
    candidates = "candidates"


class PriorKind(str, Enum):
    """What the Bayesian bound takes as known of the data."""

    gaussian = "gaussian"
    learned = "learned"


class Rest(str, Enum):
    """What an attacker with candidates is told of the rest of the batch."""

    known = "known"
    unknown = "unknown"


MODEL = ("dataset", "data", "model", "weights", "loss", "output", "batch_size", "defense")
ACCOUNT = ("noise_multiplier", "sample_rate", "steps")
TAKES = {
    Kind.bayesian: (*MODEL, "prior", "sweep", "out"),
    Kind.fisher: MODEL,
    Kind.candidates: (*MODEL, "candidates", "trials", "rest"),
    Kind.recognition: ("guess", *ACCOUNT),
    Kind.renyi: ("diameter", *ACCOUNT),
}
"""The options that each kind reads, besides seed, device and format."""


def bound(
    kind: Annotated[
        Kind,
        typer.Option(
            help="bayesian, fisher, candidates (a defense); recognition, renyi (private training)."
        ),
    ] = Kind.bayesian,
    dataset: Annotated[
        str | None,
        typer.Option(help="mnist, cifar10 (embedded), or hf:NAME.", show_default="mnist"),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Your own: an .npz file or folder.")] = None,
    model: Annotated[str | None, typer.Option(help="A name, or package.module:factory.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A state dict (no code is run).")] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="cross-entropy, mse, bce, or package.module:function.",
            show_default="cross-entropy",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="The model's output to use, by key or number, of several.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Examples in the private batch.", show_default="4")
    ] = None,
    defense: Annotated[
        str | None,
        typer.Option(
            help="As 'optimal-noise(scale=0.1)'; amounts may be left out.",
            show_default="optimal-noise",
        ),
    ] = None,
    prior: Annotated[
        PriorKind | None,
        typer.Option(
            help="bayesian: gaussian, or learned (a denoiser; minutes).", show_default="gaussian"
        ),
    ] = None,
    sweep: Annotated[bool, typer.Option(help="The curve over scales or ratios.")] = False,
    candidates: Annotated[
        int | None, typer.Option(help="candidates: how many.", show_default="256, if there are")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="candidates: messages.", show_default="64")
    ] = None,
    rest: Annotated[
        Rest | None, typer.Option(help="candidates: of the batch.", show_default="known")
    ] = None,
    guess: Annotated[
        float | None, typer.Option(help="recognition: the best blind guess's chance, as 1/N.")
    ] = None,
    diameter: Annotated[
        float | None,
        typer.Option(help="renyi: the range of an entry of the input.", show_default="1"),
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise over the clip of each example's gradient.")
    ] = None,
    sample_rate: Annotated[
        float | None,
        typer.Option(help="Each example's chance to be in a step (Poisson).", show_default="1"),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Releases.", show_default="1")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="As cpu or cuda:0.")] = "cpu",
    out: Annotated[
        Path | None, typer.Option(help="Folder for a sweep.", show_default="gradveil-bound")
    ] = None,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Show what no attacker can do, with its assumptions, without attacking."""
    given = dict(locals())
    for name in dict.fromkeys(taken for every in TAKES.values() for taken in every):
        where = f"with `--kind {kind.value}`"
        useless(own_options(name)[name], given[name], name in TAKES[kind], where)
    useless("--out", out, sweep, "without `--sweep`")
    asked = Question(
        dataset,
        data,
        model,
        weights,
        4 if batch_size is None else batch_size,
        "optimal-noise" if defense is None else defense,
        seed,
        device,
        loss,
        output,
    )
    if kind is Kind.bayesian:
        show_bayesian(asked, prior is PriorKind.learned, sweep, out, format)
    elif kind is Kind.fisher:
        show_statement(kind.value, fisher_facts(asked), format)
    elif kind is Kind.candidates:
        show_candidates(asked, candidates, trials, None if rest is None else rest.value, format)
    elif kind is Kind.recognition:
        facts = recognition_facts(guess, noise_multiplier, sample_rate, steps)
        show_statement(kind.value, facts, format)
    else:
        facts = renyi_facts(diameter, noise_multiplier, sample_rate, steps)
        show_statement(kind.value, facts, format)


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
    variants = study.sweep() if sweep else [study.defense]
    if not variants:
        raise ValueError(
            "Option `--sweep` should come with a defense that has a scale or a ratio. Found"
            f" `--defense {asked.defense}`. Leave out --sweep, or name another defense."
        )
    points = _points(study, variants)
    if sweep:
        prepare_folder(folder)
        _write(points, folder)
    _show(points, title, LEARNED_NOTE if learned else NOTE, format)
    if sweep and format is Format.table:
        print(f"Curve: {folder / 'bound.png'}")


def fisher_facts(asked: Question) -> dict[str, Any]:
    """d / tr J_F of the defense: what the Fisher bound says, as plain values."""
    study, title = bound_study(asked, flat=True)
    point = _points(study, [study.defense])[0]
    return {
        "mse": point.bound.unmatched_mse if point.bound else 0.0,
        "defense": point.defense,
        "of": title,
        "batches": point.bound.batches if point.bound else None,
        "no_guarantee": point.no_guarantee,
    }


def bound_study(asked: Question, flat: bool = False) -> tuple[BoundStudy, str]:
    """The study of the defense and what it is about; `flat` for no prior."""
    check_count(asked.batch_size, "--batch-size")
    with option("--defense", "defenses"):
        (typed,) = typed_defenses([asked.defense])
        parse_defense(typed)  # for its errors, before any work
    said, source = data_source(asked.dataset, asked.data)
    samples = load_data(said, source, asked.device)
    loss_fn = load_loss(asked.loss, samples)
    name, network = load_model(asked.model, asked.weights, samples, asked.seed, asked.device)
    private, public = split_public(samples, asked.batch_size)
    named = {"model": "--model", "targets": said, "inputs": said, "output": "--output"}
    with options({**named, "loss_fn": "--loss"}):
        output = output_key(asked.output)
        asked_of = Subject(network, loss_fn, private, public, normalization=samples, output=output)
        subject = audited(replace(asked_of, name=samples.name), Federation())
        subject = dataclasses.replace(subject, prior=None) if flat else subject
        study = BoundStudy(subject, typed, asked.seed)
    return study, f"{name} on {samples.name}, {asked.batch_size} examples"


def _points(study: BoundStudy, variants: Sequence[Defense]) -> list[BoundPoint]:
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
    mark = "" if bound is None or bound.holds else " †"
    return [
        escape(str(Spec.parse(point.defense).rounded())),
        number(point.utility_first),
        number(point.utility_second),
        f"{number(bound.mse)}{mark}" if bound else "no guarantee",
        f"{number(bound.trace_mse)}{mark}" if bound else "-",
        f"{number(bound.psnr_ceiling)}{mark}" if bound and bound.psnr_ceiling is not None else "-",
        "-" if gain is None else f"{number(gain)}×",
    ]


TRIALS = 64

CANDIDATES_ASSUMED = (
    "Any attacker, on real data: he is compared with one who is told N candidates that hold the"
    " truth, and {rest}. Candidates are independent examples of the population that the private"
    " ones come from{label}. The error is a mean over that population, not a promise for each"
    " example, {places}in normalised units, with a 95 % interval from the trials. More candidates"
    " bring the bound closer to what an attacker can do, and never above it."
)
RESTS = {
    "known": "the rest of the batch",
    "unknown": "candidates for each other example of the batch",
}
PLACES = "place by place and not after the batch's examples were matched to the truth, "
LABEL = ", of one class: the attacker knows the label"


def show_candidates(
    asked: Question,
    candidates: int | None,
    trials: int | None,
    rest: str | None,
    format: Format,
) -> None:
    """Show the error of the attacker with candidates, over their number."""
    study, title = bound_study(asked)
    count = TRIALS if trials is None else trials
    names = own_options("candidates", "trials", "rest", "batch_size") | {"examples": "--data"}
    with bar(Console(stderr=True)) as progress, options(names):
        progress("candidates", 0.0)
        found = study.from_candidates(candidates, count, "known" if rest is None else rest)
    facts = candidate_facts(found) | {"defense": spec_of(study.defense), "of": title}
    if format is Format.json:
        print(json.dumps(facts, indent=1))
        return
    _print_candidates(found, facts)


def candidate_facts(found: CandidateBound) -> dict[str, Any]:
    """The bound as plain values."""
    trend = [
        {
            "candidates": point.candidates,
            **_interval_ends("mse", point.error),
            **_interval_ends("recognition", point.rate),
            "blind_mse": point.prior_error.mean,
        }
        for point in found.trend
    ]
    return {
        "kind": "candidates",
        **trend[-1],
        "trials": found.trials,
        "batch_size": found.batch_size,
        "rest": found.rest,
        "one_class": found.one_class,
        "no_guarantee": found.reason,
        "trend": trend,
        "assumptions": _assumptions(found),
    }


def _interval_ends(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _assumptions(found: CandidateBound) -> str:
    return CANDIDATES_ASSUMED.format(
        rest=RESTS[found.rest],
        label=LABEL if found.one_class else "",
        places=PLACES if found.batch_size > 1 else "",
    )


def _print_candidates(found: CandidateBound, facts: dict[str, Any]) -> None:
    error = number(found.error.mean)
    line = f"No attacker's mean squared error per entry is below {error} in the mean over the data."
    if not found.holds:
        line = f"No guarantee ({error}): {found.reason}."
    table = Table(title=escape(f"{facts['defense']}: {facts['of']}"), title_justify="left")
    for column in ("candidates", "error ≥", "interval", "recognised ≤", "without a message"):
        table.add_column(column, justify="right")
    for point in found.trend:
        table.add_row(
            str(point.candidates),
            number(point.error.mean),
            f"{number(point.error.low)} to {number(point.error.high)}",
            share(point.rate.mean),
            number(point.prior_error.mean),
        )
    console = Console()
    console.print(table)
    console.print(escape(f"{line} {found.trials} trials."), highlight=False)
    console.print(escape(f"Assumed: {facts['assumptions']}"), highlight=False)


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
}

HEADLINES = {
    "recognition": "No attacker succeeds with a probability above {}.",
    "renyi": "No unbiased attacker has a mean squared error per entry below {}.",
    "fisher": "No unbiased attacker has a mean squared error per entry below {}.",
}


def recognition_facts(
    guess: float | None,
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
) -> dict[str, Any]:
    """The largest probability of success, and of what."""
    chance = _needed("--guess", guess, "the chance of the best blind guess, as 0.1")
    facts = _releases(noise_multiplier, sample_rate, steps)
    with options(own_options("guess", *facts)):
        probability = recognition_bound(chance, **facts)
        return {"probability": probability, "guess": chance, **facts, "sampling": _words(facts)}


def renyi_facts(
    diameter: float | None,
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
) -> dict[str, Any]:
    """The smallest error of an unbiased attacker, and of what."""
    span = 1.0 if diameter is None else diameter
    facts = _releases(noise_multiplier, sample_rate, steps)
    with options(own_options("diameter", *facts)):
        mse = renyi_bound(span, **facts)
        return {"mse": mse, "diameter": span, **facts, "sampling": _words(facts)}


def show_statement(kind: str, facts: dict[str, Any], format: Format) -> None:
    """The number, what it is about, and what it assumes."""
    if format is Format.json:
        print(json.dumps({"kind": kind, **facts, "assumptions": ASSUMPTIONS[kind]}, indent=1))
        return
    value = number(facts["probability"] if "probability" in facts else facts["mse"])
    reason = facts.get("no_guarantee")
    line = f"No guarantee ({value}): {reason}." if reason else HEADLINES[kind].format(value)
    console = Console()
    console.print(escape(line), highlight=False)
    about = ", ".join(
        f"{name.replace('_', ' ')} {found}"
        for name, found in facts.items()
        if name not in ("probability", "mse", "no_guarantee") and found is not None
    )
    console.print(escape(f"Of: {about}."), highlight=False)
    console.print(escape(f"Assumed: {ASSUMPTIONS[kind]}"), highlight=False)


def _releases(
    noise_multiplier: float | None, sample_rate: float | None, steps: int | None
) -> dict[str, Any]:
    return {
        "noise_multiplier": _needed(
            "--noise-multiplier", noise_multiplier, "the noise over the clip, as 1"
        ),
        "sample_rate": 1.0 if sample_rate is None else sample_rate,
        "steps": 1 if steps is None else steps,
    }


def _needed(name: str, value: float | None, what: str) -> float:
    if value is None:
        raise ValueError(f"Option `{name}` should be given: {what}. Found none.")
    return value


def _words(facts: dict[str, Any]) -> str:
    return PrivacyAccount(facts["noise_multiplier"], facts["sample_rate"], delta=0.5).sampling
