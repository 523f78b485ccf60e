"""The audit: measures every defense, attacks it and collects the results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from gradveil._checks import check_kind, check_optional_callable
from gradveil._extras import require
from gradveil._random import numbered_stream
from gradveil.attacks import Attack, LocalSteps, ThreatModel, Watch
from gradveil.data import Dataset, NormalizationLike, TableLayout
from gradveil.defenses import Defense, NoDefense
from gradveil.messages import AdaptedModel, LossFunction
from gradveil.sensitivity import measure_with_values

from ._amounts import (
    Budget,
    PublicPlans,
    RequestedDefense,
    make_budget,
    moving,
    planned,
    requested_defenses,
    solve,
    source_of,
    warmed,
)
from ._attack_runs import Attacked, AttackRuns, Named, named
from ._defaults import DEFENSES, PLAN_NOTE, RANGE_NOTE
from ._defense_measurement import Measurement, Shared, measure_defense
from ._meter import Meter, Progress
from ._privacy import Releases
from ._result import AuditResult, Setup, TrainingResult
from ._settings import check_settings, check_use, chosen_attacks, describe_setup
from ._subject import Batch, Subject, make_subject
from ._summary import judged, nested_runs
from ._training import client_batches, defended_training
from ._undefended import blind_guess, check_undefended
from .report import pictures

UNDEFENDED = "the undefended message"
"""Is attacked in every audit, asked for or not: a weak attack would make any defense look good."""
MEASURING = 300.0
"""The work of measuring one defense, in steps of an attack."""


def audit(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Batch,
    defenses: Sequence[str | Defense] | None = None,
    attacks: Sequence[str | Attack] | None = None,
    *,
    public: Batch | None = None,
    normalization: Dataset | NormalizationLike = None,
    output: str | int | None = None,
    layout: TableLayout | None = None,
    batches: int = 1,
    seeds: int = 1,
    match: str = "utility",
    scale: float | None = None,
    ratio: float | None = None,
    threat: ThreatModel | None = None,
    local: LocalSteps | None = None,
    steps: int | None = None,
    training: bool = True,
    time_budget: float | None = None,
    rounds: int = 100,
    delta: float = 1e-5,
    sample_rate: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
    names: Mapping[str, str] | None = None,
) -> AuditResult:
    """What leaks, what is guaranteed and what it costs, for each defense on the same private data.

    Amounts that are left out ("optimal-noise") are solved for at the first batch, such that what
    `match` names is equal; amounts that are given stay. Utilities and layers are those of the first
    batch, too; bounds average the information over 8 batches of public examples (over the private
    batches where there are no others); attacks run on all batches and seeds. Ctrl-C, and the time
    budget, end it with what is finished (`complete` is False, `stopped` says why).

    Args:
        model: Any model; never modified.
        loss_fn: Maps (outputs, targets) to one number.
        batch: The private inputs and their targets: class labels, several labels for each example
            (segmentation, sequences), or numbers. Inputs may be the ids of tokens.
        defenses: Defenses or specifications; no defense and noise, noise with clamping,
            pruning and noisy pruning, classical and optimal, if `None`.
        attacks: Attacks or specifications; the unaware and the adaptive one, if `None`, or those
            on text and on tables with categories.
        public: Other examples with targets, from which the prior and the training come. Without
            them both use the private ones, and say so.
        normalization: The way back to [0, 1] units, as for `gradveil.score`; from the observed
            range if `None`.
        output: The key or the number of the output that the loss takes, where the model returns a
            dict, a tuple or a `ModelOutput`.
        layout: The columns of a table with categories.
        batches: Into how many batches of equal size `batch` is cut.
        seeds: How many times each batch is defended and attacked.
        match: "utility", "scale", "error" or "training": what is held equal.
        scale: Of the isotropic noise that is the reference; the root mean square of the message's
            entries if `None`.
        ratio: Of the magnitude pruning that is the reference.
        threat: What attackers are granted; those that do not use the defense are not told of it.
            Labels (targets of any kind), mechanism and statistics are known if `None`.
        local: FedAvg's local steps; gradients are sent if `None`.
        steps: Of the attacks; their own if `None`.
        training: Whether to train a few steps under each defense.
        time_budget: Seconds for the attacks; with one, results depend on the machine.
        rounds: For which ε is stated beside that of one message, where a defense has (ε, δ).
        delta: δ of both.
        sample_rate: Of Poisson sampling over these rounds; 1: each example is in all of them.
        seed: Of everything random.
        progress: Called with (what is running, the share that is done).
        names: What to call "data", "model" and its "weights" in the result, and its "command".

    >>> import torch
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[4, 6, 2])
    >>> private = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
    >>> result = audit(model, nn.functional.cross_entropy, private, ["optimal-noise"], [])
    >>> [(defense.name, defense.bound is not None) for defense in result.defenses]
    [('optimal noise', True)]
    """
    require("the audit", "gradveil[audit]", "scipy", "torchmetrics", "PIL")
    check_settings(seeds, seed, match, scale, ratio, steps, training, time_budget)
    releases = Releases(rounds, delta, sample_rate)
    check_optional_callable(progress, "progress", "Give a function of (what, share).")
    names = {} if names is None else names
    check_kind(names, "names", Mapping, "Give for example {'data': 'scans'}.")
    threat = ThreatModel(mechanism="known") if threat is None else threat
    check_kind(threat, "threat", ThreatModel, "Use for example `ThreatModel(labels='unknown')`.")
    for name, asked in (("defenses", defenses), ("attacks", attacks)):
        if asked is not None:
            check_kind(asked, name, (list, tuple), "Give a list, as ['optimal-noise'].")
    requested = requested_defenses(DEFENSES if defenses is None else defenses)
    names = {"model": type(model).__name__, **names}
    model = model if output is None else AdaptedModel(model, output)
    subject = make_subject(
        model,
        loss_fn,
        batch,
        batches=batches,
        public=public,
        normalization=normalization,
        local=local,
        name=names.get("data", "data"),
        labels_known=threat.labels != "unknown",
        layout=layout,
    )
    threat.check_task(subject.task)
    check_use(requested, match, scale, ratio)
    if match == "training" and local is not None:
        raise ValueError(
            "Parameter `match` should be 'utility', 'scale' or 'error' where clients send updates:"
            " 'training' needs gradients of single examples. Found match='training' with local"
            " steps."
        )
    attackers = named(chosen_attacks(attacks, steps, subject.data))
    work = sum(one.work for one in attackers) * seeds * subject.batches
    plain = any(one.defense.is_undefended for one in requested)
    meter = Meter((work + MEASURING) * len(requested) + (not plain) * work, progress)
    budget, solved = _solved(subject, requested, match, scale, ratio, seed)
    measured = _measured(subject, solved, seed, training, releases, meter)
    attacked = Attacked()
    if len(measured) == len(solved):
        watch = Watch(time_budget)
        attackable = solved if plain else {UNDEFENDED: NoDefense(), **solved}
        runs = AttackRuns(subject, attackable, attackers, threat, seeds, seed, watch, meter)
        attacked = runs.run()
    else:
        attacked.stop("interrupted", "Stopped by the user before all defenses were measured.")
    is_solved = any(one.open for one in requested)
    equal = budget.explain() if is_solved else "Nothing: all amounts were given."
    match = match if is_solved else "given"
    setup = describe_setup(subject, seeds, seed, match, threat, equal, names)
    return _result(subject, setup, solved, measured, attackers, attacked, threat)


@dataclass(frozen=True)
class _Measured:
    costs: Measurement
    training: TrainingResult | None


def _solved(
    subject: Subject,
    requested: Sequence[RequestedDefense],
    match: str,
    scale: float | None,
    ratio: float | None,
    seed: int,
) -> tuple[Budget, dict[str, Defense]]:
    inputs, targets = subject.batch(0)
    values, moments = measure_with_values(
        subject.message(targets),
        inputs,
        "auto",
        generator=numbered_stream(seed),
        judged=match == "error",
        examples=match == "training" or any(one.defense.needs_curvature for one in requested),
    )
    budget = make_budget(match, values, moments, subject.prior, scale, ratio)
    solved, plans = {}, PublicPlans(subject, seed)
    for one in requested:
        source = source_of(subject, one.defense, moments, seed, plans)
        defense = planned(subject, solve(one, budget, moments, source))
        solved[one.name] = warmed(subject, defense, seed, plans)
    return budget, solved


def _measured(
    subject: Subject,
    solved: Mapping[str, Defense],
    seed: int,
    training: bool,
    releases: Releases,
    meter: Meter,
) -> dict[str, _Measured]:
    """All defenses, or those that were finished before Ctrl-C."""
    measured: dict[str, _Measured] = {}
    try:
        shared = Shared.of(subject, seed)
        for name, defense in solved.items():
            meter.start(f"measuring {name}", MEASURING)
            costs = measure_defense(subject, defense, seed, releases, shared)
            meter.at(0.7)
            own = moving(defense, len(client_batches(subject)))
            trained = defended_training(subject, own, seed) if training else None
            measured[name] = _Measured(costs, trained)
    except KeyboardInterrupt:
        pass
    return measured


def _result(
    subject: Subject,
    setup: Setup,
    solved: Mapping[str, Defense],
    measured: Mapping[str, _Measured],
    attackers: Sequence[Named],
    attacked: Attacked,
    threat: ThreatModel,
) -> AuditResult:
    guess = blind_guess(subject, threat.labels == "known")
    plain = next((n for n, defense in solved.items() if defense.is_undefended), UNDEFENDED)
    undefended = check_undefended(attacked.results(plain, attackers), guess, nested_runs)
    able = undefended is None or undefended.can_judge
    results = [
        judged(subject, name, solved[name], one.costs, one.training, attacks, guess, able)
        for name, one in measured.items()
        for attacks in [attacked.results(name, attackers)]
    ]
    leaks = any(d.plan == "private" for d in results)
    notes = [*([PLAN_NOTE] if leaks else []), *attacked.notes]
    if not subject.range_is_public:
        notes.append(RANGE_NOTE)
    shown = subject.data.to_pixels(subject.batch(0)[0]) if subject.is_image else subject.guess
    return AuditResult(
        setup=setup,
        defenses=tuple(results),
        originals=pictures(shown),
        complete=attacked.stopped is None,
        notes=tuple(notes),
        stopped=attacked.stopped,
        undefended=undefended,
    )
