"""`gradveil bound`: what the theory says of a defense or of private training, in seconds."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .._format import Format
from .._options import own_options, useless
from ._bayesian import Question, fisher_facts, show_bayesian
from ._candidates import show_candidates
from ._statements import recognition_facts, renyi_facts, show_statement


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
    for name in dict.fromkeys(option for options in TAKES.values() for option in options):
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
