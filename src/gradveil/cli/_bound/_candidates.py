"""The bound that needs no model of the data: what is said of one defense."""

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil.attacks import CandidateBound, Interval
from gradveil.auditing.report import number, percent
from gradveil.catalog import spec_of

from .._format import Format
from .._options import options, own_options
from .._progress import bar
from ._bayesian import Question, bound_study

TRIALS = 64

ASSUMPTIONS = (
    "Any attacker, on real data: he is compared with one who is told N candidates that hold the"
    " truth, and {rest}. Candidates are independent examples of the population that the private"
    " ones come from{label}. The error is a mean over that population, not a promise for each"
    " example, in normalised units, with a 95 % interval from the trials. More candidates bring"
    " the bound closer to what an attacker can do, and never above it."
)
RESTS = {
    "known": "the rest of the batch",
    "unknown": "candidates for each other example of the batch",
}
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
    _print(found, facts)


def candidate_facts(found: CandidateBound) -> dict[str, Any]:
    """The bound as plain values."""
    trend = [
        {
            "candidates": point.candidates,
            **_ends("mse", point.error),
            **_ends("recognition", point.rate),
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


def _ends(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _assumptions(found: CandidateBound) -> str:
    return ASSUMPTIONS.format(rest=RESTS[found.rest], label=LABEL if found.one_class else "")


def _print(found: CandidateBound, facts: dict[str, Any]) -> None:
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
            percent(point.rate.mean),
            number(point.prior_error.mean),
        )
    console = Console()
    console.print(table)
    console.print(escape(f"{line} {found.trials} trials."), highlight=False)
    console.print(escape(f"Assumed: {facts['assumptions']}"), highlight=False)
