"""Lower bounds on the error of any attacker, with what each rests on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradveil._checks import check_choice, check_count, check_inputs, check_kind, check_methods
from gradveil._memory import is_out_of_memory
from gradveil._random import generator_or_fresh
from gradveil.mechanisms import AnyMechanism, check_mechanism
from gradveil.messages import Message, ModelError, check_message, embedded, takes_tokens, values_of

from ._bound_forms import Formed, dense_bound, iterative_bound, trace_bound
from ._fisher import BoundCase, FisherInformation, MeanInformation, largest_eigenvalue
from ._prior import Prior
from ._smoothness import Evaluations, Smoothness
from ._utility import SHOWN, selects, shows_selection

if TYPE_CHECKING:
    from gradveil.defenses import Defense


def check_cases(cases: Sequence[BoundCase], prior: Prior | None, planned_by: object) -> None:
    """Require batches of one shape, and a prior of such examples."""
    if not cases:
        raise ValueError("Parameter `cases` should hold at least one batch. Found none.")
    if prior is not None:
        check_kind(prior, "prior", Prior, "Use `GaussianPrior.fit(samples)`.")
    if planned_by is not None:
        known = "`OptimalNoise(scale=0.1)`"
        check_methods(planned_by, "planned_by", ("plan", "observe"), known)
    for case in cases:
        check_message(case.message)
        check_inputs(case.inputs)
        check_mechanism(case.mechanism)
        if case.inputs.shape != cases[0].inputs.shape:
            raise ValueError(
                "Parameter `cases` should hold batches of one shape. Found"
                f" {tuple(cases[0].inputs.shape)} and {tuple(case.inputs.shape)}."
            )
        if prior is not None:
            prior.check_examples(case.inputs)


DENSE_LIMIT = 1024
"""Up to how many input entries the full bound is computed with the dense matrix."""

ENOUGH_BATCHES = 8
"""For a mean over the data. The value at fewer is given, and called no guarantee."""

NEARLY = 0.02
"""By what share the information may exceed what a prior was measured for: that of other probes."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on every attacker's mean squared error over data of a prior, where it holds.

    >>> Bound(2.0, 0.5, "trace", 0.0, "flat", counts_plan=True, batches=8).holds
    True
    """

    total: float
    """On E‖x̂ - x‖², place by place, over all m entries of the inputs. 0: no guarantee."""
    per_entry: float
    """The same for one entry: `total` / m, the unit of the MSE that attacks report. Those are after
    matching: compare them with `matched`."""
    method: str
    """"full": tr (J_D + J_P)⁻¹. "trace": from tr J_D alone (`trace_error`), never larger."""
    standard_error: float
    """Of `total`, where it was estimated with random probes; 0 where it was computed."""
    prior: str
    """The prior it holds for. Under "flat" it is no guarantee, see `reason`. Under a
    Gaussian fitted to real data it is a reference, the error of the best linear estimate."""
    counts_plan: bool
    """Whether it counts what a plan made from the private batch reveals by itself."""
    batches: int = 1
    """Over how many batches J_F was averaged. The theorem has its mean over the data inside the
    inverse; the value at one batch is too large in the mean, by Jensen's inequality."""
    explained: float = 1.0
    """The least share of the message's change over small steps that derivatives explain."""
    reason: str = ""
    """Why it does not hold as a guarantee for this message; empty where it does."""
    interval: tuple[float, float] | None = None
    """Of `per_entry`, 95 %, for the mean over the data from the scatter of the batches (bootstrap;
    the full form to first order in the information). `None` at one batch."""
    matched: float = 0.0
    """`per_entry` for errors after the examples of a batch were matched to the truth, as attacks
    are scored: the choice among B! orders takes up to log B! nats off (`matched_error`). The same
    for a batch of one. 0: none is known, as for several examples under a learned prior."""

    @property
    def holds(self) -> bool:
        """Whether its assumptions on message and mechanism were found to be met."""
        return not self.reason


FLAT = (
    "nothing is taken as known of the data (a flat prior): with much noise the number exceeds the"
    " error of guessing the mean"
)
TOKENS = (
    "the inputs are tokens, which an attacker only has to tell apart: the bound is on the error of"
    " embeddings that could be anything"
)


def reconstruction_bound(
    message: Message,
    inputs: Tensor,
    mechanism: AnyMechanism,
    prior: Prior | None = None,
    method: str = "full",
    *,
    planned_by: "Defense | None" = None,
    public_plan: bool = False,
    solver: str = "auto",
    probes: int = 16,
    generator: torch.Generator | None = None,
) -> Bound:
    """The Bayesian Cramér-Rao bound on the error of any reconstruction from what is sent.

    The Fisher information is that at `inputs`, one batch: `mean_bound` averages over several, as
    the theorem asks for. The bound is 0, with the `reason` beside it, where its assumptions fail:

    - an entry moves with the inputs although it has no derivative (`detach`, rounding, an index);
    - which entries are pruned or clamped can be seen, and the plan is not public.

    The number is given, and `reason` says that it is no guarantee, without a prior, for tokens,
    where derivatives explain less than nine tenths of how the message changes over small steps, of
    all inputs or of a few features (ReLU, max-pooling, a feature behind `detach`), and at fewer
    than 8 batches, as here.

    Args:
        message: What the client would send undefended.
        inputs: The batch at which the information is evaluated.
        mechanism: What is done to the message.
        prior: What the attacker knows beforehand; `None` is flat, which is no guarantee: with much
            noise that bound exceeds what guessing the mean of the data achieves.
        method: "full" (tight) or "trace" (looser, needs only sensitivities; the form for which
            the defenses are optimal).
        planned_by: The defense that planned the mechanism from these very inputs. Counts the
            information in the noise levels, ½ Σ_i ∇log Σ_ii ∇log Σ_iiᵀ (erratum 5). Leave it
            out for plans made from other data, which reveal nothing of this batch. What a mask
            or a clamped set reveals by its choice is not counted: `counts_plan` is then False.
        public_plan: Whether the mechanism was planned from other data, or is fixed: then which
            entries it prunes or clamps says nothing of these inputs.
        solver: Of the full bound: "dense", "iterative" (matrix-free: conjugate gradients with
            random probes, a standard error beside it), or "auto" by the size of the inputs.
        probes: How many random probes the stochastic estimates take.
        generator: For those probes.

    >>> from gradveil.mechanisms import Mechanism
    >>> reconstruction_bound(lambda x: {"w": 2 * x}, torch.ones(1, 3), Mechanism(1.0)).per_entry
    0.25
    """
    return mean_bound(
        [BoundCase(message, inputs, mechanism)],
        prior,
        method,
        planned_by=planned_by,
        public_plan=public_plan,
        solver=solver,
        probes=probes,
        generator=generator,
    )


def mean_bound(
    cases: Sequence[BoundCase],
    prior: Prior | None = None,
    method: str = "full",
    *,
    planned_by: "Defense | None" = None,
    public_plan: bool = False,
    solver: str = "auto",
    probes: int = 16,
    generator: torch.Generator | None = None,
    known: Sequence[Evaluations] | None = None,
) -> Bound:
    """The bound with J_D = E_x J_F(x), the mean over batches of the population (Theorem 1).

    tr (J_D + J_P)⁻¹ is convex in J_D, so the mean of bounds at single batches is larger than the
    bound at the mean, and no bound. Few batches leave some of that excess: `Bound.batches` tells.

    Args:
        cases: Batches of one shape, each with its message and its mechanism.
        prior: See `reconstruction_bound`, as for all that follow.
        method: "full" or "trace".
        planned_by: The defense that planned each mechanism from its own batch.
        public_plan: Whether the mechanisms were planned from other data.
        solver: "auto", "dense" or "iterative".
        probes: How many random probes the stochastic estimates take.
        generator: For those probes.
        known: Of the message of each case, to share values and derivatives between the bounds of
            several mechanisms.
    """
    tokens = any(takes_tokens(case.message) for case in cases)
    cases = [BoundCase(*_over_numbers(c.message, c.inputs), c.mechanism) for c in cases]
    check_choice(method, "method", ("full", "trace"))
    check_choice(solver, "solver", ("auto", "dense", "iterative"))
    check_count(probes, "probes")
    check_cases(cases, prior, planned_by)
    generator = generator_or_fresh(generator)
    if prior is not None:
        cases = [case._replace(inputs=prior.drawn(case.inputs, generator)) for case in cases]
    try:
        each: Sequence[Evaluations | None] = known or [None] * len(cases)
        pairs = zip(cases, each, strict=True)
        information = MeanInformation([FisherInformation(*case, own) for case, own in pairs])
        seen = information.smoothness(generator)
    except (RuntimeError, ModelError) as failure:
        if is_out_of_memory(failure):
            raise
        return _undifferentiable(cases, prior, method)
    shown = not public_plan and any(
        shows_selection(i.mechanism, i.values) for i in information.parts
    )
    if seen.hidden or shown or information.is_infinite():
        formed = Formed(0.0, 0.0, None)
    elif method == "trace":
        formed = trace_bound(information, prior, planned_by, probes, generator, DENSE_LIMIT)
    elif solver == "dense" or (solver == "auto" and information.size <= DENSE_LIMIT):
        formed = dense_bound(information, prior, planned_by)
    else:
        formed = iterative_bound(information, prior, planned_by, probes, generator)
    total, error, ends, matched = formed
    return Bound(
        total=total,
        per_entry=total / information.size,
        method=method,
        standard_error=error,
        prior="flat" if prior is None else prior.name,
        counts_plan=planned_by is not None and not any(selects(c.mechanism) for c in cases),
        batches=len(cases),
        explained=seen.explained,
        reason=(TOKENS if tokens else "")
        or _reason(seen, shown, total, len(cases), prior)
        or _excess(information, prior, planned_by, generator),
        interval=ends and (ends[0] / information.size, ends[1] / information.size),
        matched=matched / information.size if _covers_orders(information, prior) else 0.0,
    )


def _covers_orders(information: MeanInformation, prior: Prior | None) -> bool:
    """Whether what is proved of errors after matching covers this prior, or nothing is matched."""
    return information.examples == 1 or prior is None or prior.largest == float("inf")


def _over_numbers(message: Message, inputs: Tensor) -> tuple[Message, Tensor]:
    """Message and inputs, or for tokens those over their embeddings."""
    if takes_tokens(message):
        check_inputs(inputs, tokens=True)
    return embedded(message, inputs)


def _undifferentiable(cases: Sequence[BoundCase], prior: Prior | None, method: str) -> Bound:
    """No guarantee for a message that has values but no derivatives; its own error if neither."""
    for case in cases:
        values_of(case.message, case.inputs)
    name = "flat" if prior is None else prior.name
    reason = "PyTorch cannot differentiate the message, so there is no derivative to bound it by"
    return Bound(0.0, 0.0, method, 0.0, name, False, len(cases), 0.0, reason)


def _reason(seen: Smoothness, shown: bool, total: float, batches: int, prior: Prior | None) -> str:
    if shown:
        return SHOWN
    if seen.reason or total == 0:
        found = seen.reason or "entries are sent without noise"
    elif batches < ENOUGH_BATCHES:
        found = (
            f"the information is the mean over {batches} of the at least {ENOUGH_BATCHES} batches"
            " that a bound needs"
        )
    else:
        found = ""
    flat = FLAT if prior is None and total > 0 else ""
    return "; ".join(why for why in (found, flat) if why)


def _excess(
    information: MeanInformation,
    prior: Prior | None,
    planned_by: object,
    generator: torch.Generator,
) -> str:
    """Why a prior that is valid up to some information does not cover this message."""
    if prior is None or prior.largest == float("inf"):
        return ""
    if planned_by is not None:
        return "the noise levels tell of the batch, too, and the prior is for fixed levels"
    found = largest_eigenvalue(information, generator)
    if found <= (1 + NEARLY) * prior.largest:
        return ""
    return (
        f"the message tells {found:.3g} of one direction, where the prior was measured for at most"
        f" {prior.largest:.3g}: measure it at noise {found**-0.5:.3g} or less"
    )
