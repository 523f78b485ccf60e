"""Statements about private training, each with its assumptions."""

import json
from typing import Any

from rich.console import Console
from rich.markup import escape

from gradveil.auditing.report import number
from gradveil.privacy import PrivacyAccount, recognition_bound, renyi_bound

from .._format import Format
from .._options import options, own_options

ASSUMPTIONS = {
    "recognition": (
        "Any attacker and any data: he may know everything but one example, the model and all"
        " releases included. Each example's gradient is clipped to the norm C, the noise has"
        " standard deviation z C in the same norm, shapes are public, and examples are sampled as"
        " stated. The guess is the best blind attacker's chance; if it is larger, so is the bound."
    ),
    "renyi": (
        "Attackers whose estimate is unbiased for every example, which none with a prior is: such"
        " attackers may have a smaller error. Clip, noise and sampling as for recognition; one"
        " example replaced by any other. Theorem 1 of Guo et al., 2022."
    ),
    "fisher": (
        "Attackers whose estimate is unbiased near this input, which none with a prior is: such"
        " attackers may have a smaller error. d / tr J_F, with the mean of tr J_F over batches, in"
        " normalised units. Hannun et al., 2021; Theorem 2 of Guo et al., 2022."
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
