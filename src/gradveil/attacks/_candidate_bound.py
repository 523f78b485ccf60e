"""A lower bound on every attacker's error that needs no model of the data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log

import torch
from torch import Tensor, nn

from gradveil._checks import check_choice, check_kind
from gradveil._random import generator_or_fresh, seed_from
from gradveil.defenses import Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.messages import LocalSteps, LossFunction
from gradveil.scoring import Interval

from ._identify import Identification, Identify
from ._identify_trials import Draw, IdentificationReport, Population, Setting, Trial, judged
from ._observation import Observation

TREND = (8, 32, 128, 256)
"""Numbers of candidates of the trend, as far as they are below the one asked for."""


MOST_WORK = 2**16
"""Candidates times combinations of neighbours that are gone through for each draw."""

PLANS_ANEW = (
    "the plan is made from the private batch with random probes, so the likelihood of what was"
    " sent is an estimate, and an attacker who computes it better has a smaller error"
)


@dataclass(frozen=True)
class CandidatePoint:
    """What the best attacker reaches who is told N candidates.

    >>> from gradveil.scoring import Interval
    >>> half = Interval(0.5, 0.4, 0.6)
    >>> CandidatePoint(8, error=half, rate=half, prior_error=Interval(1.0, 0.9, 1.1)).candidates
    8
    """

    candidates: int
    """N."""
    error: Interval
    """Its mean squared error per entry, in the units of the inputs: no attacker's is smaller."""
    rate: Interval
    """How often it picks the truth: no attacker does more often. Chance is 1/N."""
    prior_error: Interval
    """Its error without a message."""


@dataclass(frozen=True)
class CandidateBound:
    """No attacker's mean squared error over the data is below `error`, where it `holds`.

    Place by place: after the examples of a batch were matched to the truth errors may be smaller.

    >>> from gradveil.scoring import Interval
    >>> one, half = Interval(1.0, 1.0, 1.0), Interval(0.5, 0.4, 0.6)
    >>> CandidateBound(8, half, half, one, 64, 1, "known", True, ()).holds
    True
    """

    candidates: int
    """N."""
    error: Interval
    """Of the posterior's mean, per entry, in the units of the inputs."""
    rate: Interval
    """How often the truth is the most likely of N: the best of all attackers' chance."""
    prior_error: Interval
    """The error without a message: the most that this bound can say with N candidates."""
    trials: int
    """Messages that it was measured with."""
    batch_size: int
    rest: str
    """"known": he knows the rest of the batch. "unknown": he is told candidates for it."""
    one_class: bool
    """Whether the attacker knows the label: all candidates have it."""
    trend: tuple[CandidatePoint, ...]
    """The same for fewer candidates and for N: it grows with N in the mean."""
    reason: str = ""
    """Why it is an estimate and no bound; empty where it is one."""

    @property
    def holds(self) -> bool:
        """Whether the likelihood of what was sent is exact."""
        return not self.reason


def candidate_bound(
    model: nn.Module,
    loss_fn: LossFunction,
    examples: tuple[Tensor, Tensor],
    defense: Defense,
    *,
    num_classes: int,
    candidates: int = 256,
    batch_size: int = 1,
    trials: int = 64,
    per_draw: int = 4,
    rest: str = "known",
    neighbours: int = 16,
    one_class: bool = True,
    public_mechanism: AnyMechanism | None = None,
    local: LocalSteps | None = None,
    generator: torch.Generator | None = None,
) -> CandidateBound:
    """The least error of any attacker on real data, without a model of the data.

    An attacker who is told a set S of N examples, the truth and N - 1 others of the same
    population, in any order, and the rest r of the batch, can ignore both. So for every estimate
    x̂ from what was sent, y,

        E‖x̂(y) - x‖² ≥ E‖E[x | y, S, r] - x‖²,

    and the right-hand side can be computed: given S the prior is uniform, and p(y | x, r) is the
    mechanism's likelihood (`Identify`). Nor does any attacker pick the truth out of N more often.
    It is a mean over data, which the trials estimate; see the interval. Larger N are closer to
    what an attacker without candidates can do, and never above it. Where the likelihood is an
    estimate (a plan from the private batch), the result says so in `reason`.

    Args:
        model: The model that the server sent out.
        loss_fn: The loss of the training.
        examples: Public inputs and class labels, an independent sample of the population.
        defense: What the client does to its message.
        num_classes: Of the data.
        candidates: N.
        batch_size: Examples in the client's batch.
        trials: How many messages in all.
        per_draw: Messages that share candidates and rest.
        rest: What the attacker is told of the other examples of the batch: "known", or "unknown",
            which is closer to an attacker who is told nothing: `neighbours` candidates for each of
            them, the true one included, summed over in all combinations.
        neighbours: How many, or as many as are left.
        one_class: Whether the attacker knows the labels; then candidates share that of the truth.
            Classes with fewer than N examples are left out of the mean over the data.
        public_mechanism: As for `observe`.
        local: FedAvg's local steps; gradients are sent if `None`.
        generator: For all draws.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientNoise
    >>> from gradveil.models import build_model
    >>> generator = torch.Generator().manual_seed(0)
    >>> examples = torch.rand(40, 3, generator=generator), torch.zeros(40, dtype=torch.int64)
    >>> bound = candidate_bound(
    ...     build_model("mlp", sizes=[3, 4, 2]), cross_entropy, examples, GradientNoise(1.0),
    ...     num_classes=2, candidates=8, trials=8, generator=generator,
    ... )
    >>> bound.candidates, bound.trials
    (8, 8)
    """
    population = Population.checked(
        examples, num_classes, candidates, batch_size, one_class, trials=trials, per_draw=per_draw,
        neighbours=neighbours,
    )  # fmt: skip
    _check_work(candidates, batch_size, rest, neighbours)
    check_kind(defense, "defense", Defense, "Use for example `GradientNoise(0.1)`.")
    generator = generator_or_fresh(generator)
    sizes = [*(n for n in TREND if n < candidates), candidates]
    done: dict[int, list[Trial]] = {size: [] for size in sizes}
    setting = Setting(model, loss_fn, num_classes, local, public_mechanism)
    for number, draw in enumerate(population.draws(trials, per_draw, generator)):
        messages = setting.messages(draw, defense, generator)
        rests: Iterator[tuple[Tensor, Tensor] | None] = iter([draw.rest])
        if rest == "unknown" and batch_size > 1:
            own = torch.Generator().manual_seed(seed_from(generator))  # the messages stay the same
            rests = _combinations(population.neighbours(draw, neighbours, own))
        found = _marginal(draw, messages, rests, generator)
        for one, truth, place in zip(found, draw.truths[0], draw.places, strict=True):
            for size in sizes:
                done[size].append(judged(number, *_among(one, truth, place, size)))
    trend = tuple(_point(size, done[size]) for size in sizes)
    known = "known" if batch_size == 1 else rest
    reason = PLANS_ANEW if defense.about.varies and public_mechanism is None else ""
    return CandidateBound(
        **vars(trend[-1]), trials=trials, batch_size=batch_size, rest=known, one_class=one_class,
        trend=trend, reason=reason,
    )  # fmt: skip


def _marginal(
    draw: Draw,
    messages: list[Observation],
    rests: Iterator[tuple[Tensor, Tensor] | None],
    generator: torch.Generator,
) -> list[Identification]:
    """log Σ_r p(sent | candidate, r) / R over the R possible rests of the batch."""
    found = [Identify(draw.candidates, rest).many(messages, generator) for rest in rests]
    marginal = []
    for each in zip(*found, strict=True):
        tables = torch.stack([one.log_likelihoods for one in each])
        logs = tables.logsumexp(0) - log(len(tables))
        marginal.append(replace(each[0], log_likelihoods=logs))
    return marginal


def _combinations(sets: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The rests of the batch with one example of each set."""
    for places in product(*(range(len(inputs)) for inputs, _ in sets)):
        chosen = list(zip(sets, places, strict=True))
        yield (
            torch.stack([inputs[at] for (inputs, _), at in chosen]),
            torch.stack([targets[at] for (_, targets), at in chosen]),
        )


def _among(
    found: Identification, truth: Tensor, place: int, size: int
) -> tuple[Identification, Tensor, int]:
    """The posterior over the truth and the first `size` - 1 other candidates."""
    count = len(found.log_likelihoods)
    if size == count:
        return found, truth, place
    some = [place, *(k for k in range(size) if k != place)][:size]
    chosen = torch.tensor(some)
    likely = found.log_likelihoods[chosen.to(found.log_likelihoods.device)]
    return Identification(likely, found.inputs[chosen.to(found.inputs.device)]), truth, 0


def _point(size: int, trials: list[Trial]) -> CandidatePoint:
    report = IdentificationReport(size, tuple(trials))
    error = replace(report.error, low=max(0.0, report.error.low))  # Student's may be below
    return CandidatePoint(size, error, report.rate, report.prior_error)


def _check_work(candidates: int, batch_size: int, rest: str, neighbours: int) -> None:
    check_choice(rest, "rest", ("known", "unknown"))
    work = candidates * neighbours ** (batch_size - 1)
    if rest == "unknown" and work > MOST_WORK:
        raise ValueError(
            "Parameters `candidates`, `neighbours` and `batch_size` should give at most"
            f" {MOST_WORK} cases, candidates · neighbours^(batch_size - 1). Found {candidates},"
            f" {neighbours} and {batch_size}: {work}. Ask for fewer, or use rest='known'."
        )
