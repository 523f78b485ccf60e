"""`recommend`: which defense, how strong, and what it costs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from gradveil._checks import (
    check_count,
    check_kind,
    check_not_negative,
    check_optional_callable,
    check_seed,
)
from gradveil._extras import require
from gradveil._random import numbered_stream
from gradveil.attacks import Attack, LocalSteps, ThreatModel
from gradveil.catalog import spec_of
from gradveil.data import Dataset, NormalizationLike, TableLayout
from gradveil.defenses import Defense
from gradveil.messages import AdaptedModel, LossFunction
from gradveil.sensitivity import measure
from gradveil.studies.runner import Engine, LocalEngine, Prepare

from .._meter import Meter, Progress
from .._privacy import Releases
from .._result import AuditResult
from .._settings import chosen_attacks
from .._subject import Batch, Subject, make_subject
from .._undefended import blind_guess
from ._axis import axes_of, usual_amounts
from ._goal import Goal
from ._measuring import Plan, Training, hold, subject_fingerprint
from ._search import PLAIN, Search
from ._whole import expected_work, run_search

DEFENSES = (
    "gradient-noise",
    "optimal-noise",
    "optimal-noise(granularity='layer')",
    "gradient-pruning",
    "optimal-pruning",
    "private-noise",
)
"""What is compared if nothing is asked for."""

STRENGTHS, TRIALS, STEPS = 4, 128, 100
"""Of each defense, messages of the exact attacker, and steps of the attacks."""

MakeEngine = Callable[[Prepare], Engine]
"""An engine whose processes are prepared by the given function before they run cells."""


def recommend(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Batch,
    defenses: Sequence[str | Defense] | None = None,
    attacks: Sequence[str | Attack] | None = None,
    *,
    goals: Sequence[str | Goal] = (),
    public: Batch | None = None,
    normalization: Dataset | NormalizationLike = None,
    output: str | int | None = None,
    layout: TableLayout | None = None,
    batches: int = 1,
    seeds: int = 1,
    strengths: int = STRENGTHS,
    training: Training | None = None,
    threat: ThreatModel | None = None,
    local: LocalSteps | None = None,
    steps: int | None = None,
    rounds: int = 100,
    delta: float = 1e-5,
    sample_rate: float = 1.0,
    time_budget: float | None = None,
    folder: Path | str | None = None,
    engine: MakeEngine | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    names: Mapping[str, str] | None = None,
) -> AuditResult:
    """Which defense to use, how strong, and what it costs, measured on your model and data.

    Each defense is run over strengths. Leakage is what the attacks recover from the messages of
    the private batches, cost the loss after a federated training. Then the cheapest setting for
    each goal is looked for, measured, and attacked again at two later moments of its training.

    Args:
        model: As for `audit`, and so are the arguments that are not listed here.
        loss_fn: Maps (outputs, targets) to one number.
        batch: The private inputs and their targets.
        defenses: Those without an amount are run over strengths, others at the one given.
        attacks: The adaptive one, if `None`: it knows the defense.
        goals: To be met at once, as "psnr<=15" and "loss<=+5%"; three usual levels if empty.
        public: Other examples with targets: plans, priors and the training come from them.
        normalization: The way back to [0, 1] units.
        output: Which of several outputs of the model the loss takes.
        layout: The columns of a table with categories.
        batches: Into how many batches `batch` is cut.
        seeds: How many times each batch is defended and attacked.
        strengths: Of each defense, before goals are solved for.
        training: Rounds, clients, seeds, and the server's optimizer.
        threat: What attackers are granted.
        local: FedAvg's local steps; gradients are sent if `None`.
        steps: Of the attacks; 100 if `None`.
        rounds: For which ε is stated.
        delta: δ.
        sample_rate: Of Poisson sampling over these rounds.
        time_budget: Seconds; it ends with what is finished.
        folder: Of the store: an audit that was stopped goes on, and one that is asked for again
            costs nothing. Nothing is kept if `None`.
        engine: What runs the cells, given how to prepare its processes; this process if `None`.
        seed: Of everything random.
        progress: Called with (what is running, the share that is done).
        names: What to call "data", "model" and its "weights" in the result, and its "command".

    >>> import torch
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[4, 6, 2])
    >>> data = torch.Generator().manual_seed(0)
    >>> private = torch.rand(2, 4, generator=data), torch.tensor([0, 1])
    >>> public = torch.rand(80, 4, generator=data), torch.arange(80) % 2
    >>> short = Training(rounds=2, seeds=2)
    >>> result = recommend(model, nn.functional.cross_entropy, private, ["gradient-noise"],
    ...                    goals=["error>=50%"], public=public, training=short, steps=5)
    >>> result.frontier.answers[0].title
    'error>=50%'
    """
    require("the audit", "gradveil[audit]", "scipy", "torchmetrics", "PIL")
    check_count(seeds, "seeds")
    check_count(strengths, "strengths")
    if time_budget is not None:
        check_not_negative(time_budget, "time_budget")
    check_optional_callable(progress, "progress", "Give a function of (what, share).")
    threat = ThreatModel(mechanism="known") if threat is None else threat
    check_kind(threat, "threat", ThreatModel, "Use for example `ThreatModel(labels='unknown')`.")
    for name, asked in (("defenses", defenses), ("attacks", attacks), ("goals", goals)):
        if asked is not None:
            check_kind(asked, name, (list, tuple), "Give a list, as ['psnr<=15'].")
    wanted = [Goal.parse(goal) if isinstance(goal, str) else goal for goal in goals]
    for goal in wanted:
        check_kind(goal, "goals", Goal, "Use for example 'psnr<=15'.")
    if training is not None:
        check_kind(training, "training", Training, "Use for example `Training(rounds=20)`.")
    names = {"model": type(model).__name__, **(names or {})}
    model = model if output is None else AdaptedModel(model, output)
    subject = make_subject(
        model,
        loss_fn,
        batch,
        batches=batches,
        public=public,
        normalization=normalization,
        local=local,
        layout=layout,
        name=names.get("data", "data"),
        labels_known=threat.labels != "unknown",
    )
    training = Training() if training is None else training
    threat.check_task(subject.task)
    _check_derivatives(subject, seed)
    plan = Plan(
        subject=subject_fingerprint(subject),
        attacks=tuple(map(spec_of, _attacks(attacks, steps, subject.data))),
        threat=threat,
        training=training.for_messages("gradient" if local is None else "update"),
        releases=Releases(rounds, delta, sample_rate),
        seeds=seeds,
        seed=seed,
        trials=TRIALS,
    )
    axes = axes_of(DEFENSES if defenses is None else defenses, subject, usual_amounts(subject))
    axes = [axis for axis in axes if str(axis.spec) != PLAIN]
    prepare = partial(hold, plan.subject, subject)
    meter = Meter(expected_work(axes, strengths, 1 if goals else 3, training), progress)
    with _place(folder) as place:
        runner = LocalEngine(1, prepare) if engine is None else engine(prepare)
        guess = blind_guess(subject, threat.labels == "known")
        search = Search(plan, guess, runner, Path(place), meter, time_budget)
        return run_search(search, subject, axes, wanted, strengths, names)


def _attacks(
    asked: Sequence[str | Attack] | None, steps: int | None, data: Dataset
) -> list[Attack]:
    """Those asked for; else the one that knows the defense, which starts from the unaware one."""
    if asked is not None:
        return chosen_attacks(asked, steps, data)
    usual = chosen_attacks(None, STEPS if steps is None else steps, data)
    aware = [one for one in usual if one.knows_defense]
    return aware or usual


def _check_derivatives(subject: Subject, seed: int) -> None:
    """Require second derivatives, which plans, bounds and attacks take; before any work."""
    check_seed(seed)
    if not subject.tokens:
        inputs, targets = subject.batch(0)
        measure(subject.message(targets), inputs, "auto", generator=numbered_stream(seed))


def _place(folder: Path | str | None) -> AbstractContextManager[Path | str]:
    return TemporaryDirectory() if folder is None else nullcontext(folder)
