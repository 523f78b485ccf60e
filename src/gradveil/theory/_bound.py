"""Lower bounds on the error of any attacker, with what each rests on, in two forms."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_inputs,
    check_kind,
    check_methods,
    is_out_of_memory,
)
from gradveil._random import generator_or_fresh, named_stream, rademacher_like
from gradveil._tensors import conjugate_gradients
from gradveil.mechanisms import AnyMechanism, check_mechanism
from gradveil.messages import Message, ModelError, check_message, embedded, takes_tokens, values_of
from gradveil.sensitivity import measure

from ._fisher import (
    BoundCase,
    Evaluations,
    FisherInformation,
    MeanInformation,
    Smoothness,
    fisher_trace,
    largest_eigenvalue,
    mean_and_error,
    plan_information,
    plan_information_trace,
)
from ._prior import Prior
from ._utility import selects, shows_selection

if TYPE_CHECKING:
    from gradveil.defenses import Defense

DENSE_LIMIT = 1024
"""Up to how many input entries the full bound is computed with the dense matrix."""

ENOUGH_BATCHES = 8
"""For a mean over the data. The value at fewer is given, and called no guarantee."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on every attacker's mean squared error over data of a prior, where it holds.

    >>> Bound(2.0, 0.5, "trace", 0.0, "flat", counts_plan=True, batches=8).holds
    True
    """

    total: float
    """On E‖x̂ - x‖², place by place, over all m entries of the inputs. 0: no guarantee."""
    per_entry: float
    """`total` / m. Attacks report errors after matching: compare those with `matched`."""
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
    """Over how many J_F was averaged; with few the bound is too large, by Jensen's inequality."""
    explained: float = 1.0
    """The least share of the message's change over small steps that derivatives explain."""
    reason: str = ""
    """Why it does not hold as a guarantee for this message; empty where it does."""
    interval: tuple[float, float] | None = None
    """Of `per_entry`, 95 %, from the scatter of the batches (bootstrap; the full form to first
    order in the information). `None` at one batch."""
    matched: float = 0.0
    """`per_entry` for errors after the examples of a batch were matched to the truth, as attacks
    are scored (`matched_error`). 0: none is known, as for several under a learned prior."""

    @property
    def holds(self) -> bool:
        """Whether its assumptions on message and mechanism were found to be met."""
        return not self.reason


def reconstruction_bound(
    message: Message,
    inputs: Tensor,
    mechanism: AnyMechanism,
    prior: Prior | None = None,
    method: str = "full",
    **options: Any,
) -> Bound:
    """The Bayesian Cramér-Rao bound on the error of any reconstruction from what is sent.

    `mean_bound` of one batch: the value is given, and called no guarantee.

    >>> from gradveil.mechanisms import Mechanism
    >>> reconstruction_bound(lambda x: {"w": 2 * x}, torch.ones(1, 3), Mechanism(1.0)).per_entry
    0.25
    """
    return mean_bound([BoundCase(message, inputs, mechanism)], prior, method, **options)


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

    The bound is 0, with the `reason` beside it, where its assumptions fail:

    - an entry moves with the inputs although it has no derivative (`detach`, rounding, an index);
    - which entries are pruned or clamped can be seen, and the plan is not public.

    The number is given, and `reason` says that it is no guarantee, without a prior, for tokens,
    where derivatives explain less than nine tenths of how the message changes over small steps, of
    all inputs or of a few features (ReLU, max-pooling, a feature behind `detach`), and at fewer
    than 8 batches.

    Args:
        cases: Batches of one shape, each with its undefended message and its mechanism.
        prior: What the attacker knows beforehand; `None` is flat, which is no guarantee: with much
            noise that bound exceeds what guessing the mean of the data achieves.
        method: "full" (tight) or "trace" (looser; the form for which the defenses are optimal).
        planned_by: The defense that planned each mechanism from its own batch. Counts the
            information in the noise levels, ½ Σ_i ∇log Σ_ii ∇log Σ_iiᵀ (erratum 5). Leave it
            out for plans made from other data, which reveal nothing of the batch. What a mask
            or a clamped set reveals by its choice is not counted: `counts_plan` is then False.
        public_plan: Whether the mechanisms were planned from other data, or are fixed: then which
            entries they prune or clamp says nothing of the inputs.
        solver: Of the full bound: "dense", "iterative" (matrix-free: conjugate gradients with
            random probes, a standard error beside it), or "auto" by the size of the inputs.
        probes: How many random probes the stochastic estimates take, from the generator.
        known: Of the message of each case, to share it between the bounds of several mechanisms.
    """
    check_choice(method, "method", ("full", "trace"))
    check_choice(solver, "solver", ("auto", "dense", "iterative"))
    check_count(probes, "probes")
    tokens = any(takes_tokens(case.message) for case in cases)
    cases = _embedded(cases, prior, planned_by)
    generator = generator_or_fresh(generator)
    try:
        kept: Sequence[Evaluations | None] = known or [None] * len(cases)
        parts = [FisherInformation(*case, own) for case, own in zip(cases, kept, strict=True)]
        information = MeanInformation(parts)
        # features move by themselves at the first two batches
        each = (part.smoothness(generator, place < 2) for place, part in enumerate(parts))
        seen = sum(each, Smoothness())
    except (RuntimeError, ModelError) as failure:
        if is_out_of_memory(failure):
            raise
        return _undifferentiable(cases, prior, method)
    shown = not public_plan and any(shows_selection(i.mechanism, i.values) for i in parts)
    asked = Asked(information, prior, planned_by, probes, generator)
    hopeless = seen.hidden or shown or any(part.is_infinite() for part in parts)
    small = information.size <= DENSE_LIMIT
    form = dense_bound if solver == "dense" or (solver == "auto" and small) else iterative_bound
    form = trace_bound if method == "trace" else form
    total, error, ends, matched = Formed(0.0, 0.0, None) if hopeless else form(asked)
    # what is proved of errors after matching is for densities; a single example is not matched
    covered = information.examples == 1 or prior is None or math.isinf(prior.largest)
    return Bound(
        total=total,
        per_entry=total / information.size,
        method=method,
        standard_error=error,
        prior="flat" if prior is None else prior.name,
        counts_plan=planned_by is not None and not any(selects(c.mechanism) for c in cases),
        batches=len(cases),
        explained=seen.explained,
        reason=_reason(asked, seen, total, tokens=tokens, shown=shown),
        interval=ends and (ends[0] / information.size, ends[1] / information.size),
        matched=matched / information.size if covered else 0.0,
    )


def _undifferentiable(cases: Sequence[BoundCase], prior: Prior | None, method: str) -> Bound:
    """No guarantee for a message that has values but no derivatives; its own error if neither."""
    for case in cases:
        values_of(case.message, case.inputs)
    name = "flat" if prior is None else prior.name
    reason = "PyTorch cannot differentiate the message, so there is no derivative to bound it by"
    return Bound(0.0, 0.0, method, 0.0, name, False, len(cases), 0.0, reason)


def _reason(asked: "Asked", seen: Smoothness, total: float, *, tokens: bool, shown: bool) -> str:
    """Why a bound is no guarantee; empty where it is one."""
    prior, batches = asked.prior, len(asked.information.parts)
    if tokens:
        return (
            "the inputs are tokens, which an attacker only has to tell apart: the bound is on the"
            " error of embeddings that could be anything"
        )
    if shown:
        return (
            "which entries are pruned or clamped can be seen, and the choice was made from the"
            " private batch"
        )
    found = seen.reason or ("" if total else "entries are sent without noise")
    if not found and batches < ENOUGH_BATCHES:
        found = (
            f"the information is the mean over {batches} of the at least {ENOUGH_BATCHES} batches"
            " that a bound needs"
        )
    if prior is None and total > 0:
        flat = (
            "nothing is taken as known of the data (a flat prior): with much noise the number"
            " exceeds the error of guessing the mean"
        )
        return "; ".join(why for why in (found, flat) if why)
    return found or _excess(asked)


def _excess(asked: "Asked") -> str:
    """Why a prior that is valid up to some information does not cover this message."""
    prior = asked.prior
    if prior is None or math.isinf(prior.largest):
        return ""
    if asked.planned_by is not None:
        return "the noise levels tell of the batch, too, and the prior is for fixed levels"
    found = largest_eigenvalue(asked.information, asked.generator)
    if found <= 1.02 * prior.largest:  # as it may be with other probes
        return ""
    return (
        f"the message tells {found:.3g} of one direction, where the prior was measured for at most"
        f" {prior.largest:.3g}: measure it at noise {found**-0.5:.3g} or less"
    )


def _embedded(
    cases: Sequence[BoundCase], prior: Prior | None, planned_by: object
) -> list[BoundCase]:
    """Batches of one shape, checked, with embeddings for tokens, and a prior of such examples."""
    for case in cases:
        if takes_tokens(case.message):
            check_inputs(case.inputs, tokens=True)
    cases = [BoundCase(*embedded(c.message, c.inputs), c.mechanism) for c in cases]
    if not cases:
        raise WrongValue("cases", "hold at least one batch", "none")
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
            found = f"{tuple(cases[0].inputs.shape)} and {tuple(case.inputs.shape)}"
            raise WrongValue("cases", "hold batches of one shape", found)
        if prior is not None:
            prior.check_examples(case.inputs)
    return cases


class Asked(NamedTuple):
    """What a form of the bound is computed from."""

    information: MeanInformation
    prior: Prior | None
    planned_by: "Defense | None"
    probes: int
    generator: torch.Generator

    def signs(self) -> Tensor:
        """The rows of random probes."""
        size, device = self.information.size, self.information.device
        like = torch.empty(self.probes, size, dtype=torch.float64)
        return rademacher_like(like, self.generator).to(device)


class Formed(NamedTuple):
    """A bound on E‖x̂ - x‖², and how well it is known; see `Bound` for the words."""

    total: float
    error: float
    interval: tuple[float, float] | None
    matched: float = 0.0


def trace_error(trace: float, size: int, prior: Prior | None = None, *, matched: int = 1) -> float:
    """The trace form, the largest k² / (tr J_D + tr_k J_P) over leading directions k of the prior.

    For any k orthogonal directions V the errors along them are at least
    tr (Vᵀ (J_D + J_P) V)⁻¹ ≥ k² / (tr J_D + tr Vᵀ J_P V). With all of them, and for a flat prior,
    it is m² / (tr J_D + tr J_P). For errors after matching B = `matched` examples each is
    (B!)^(-2/k) of that, by the steps of `matched_error` for V, and det(A)^(1/k) ≤ tr A / k.
    """
    choice = math.lgamma(matched + 1)
    entries, known = (size, 0.0) if prior is None else prior.leading(size, trace, choice)
    if trace + known <= 0:
        return float("inf")
    return math.exp(-2 * choice / entries) * entries**2 / (trace + known)


def matched_error(errors: Tensor, examples: int) -> float:
    """The least Σ_i D_i with Σ_i log (λ_i / D_i) ≤ 2 log B!, 0 < D_i ≤ λ_i: reverse water-filling.

    It bounds E min_π Σ_b ‖x̂_π(b) - x_b‖², the error of any attacker after the truth has chosen the
    order, from the eigenvalues λ of (J_D + J_P)⁻¹:

    1. Let v be the coordinates of x along a set S of k eigenvectors, u the others. The density of
       v_i / √λ_i given y and u has an information of k in the mean. Stam's inequality,
       h ≥ k/2 log (2πe k / information), and Jensen's give (Efroimovich, 1979)
       h(v | y) ≥ h(v | y, u) ≥ ½ Σ_S log (2πe λ_i).
    2. The order π is one of B!, whatever it is chosen by: h(v | y, π) ≥ h(v | y) - log B!.
    3. x̂ in the order π is a function of y and π. With D_i its mean squared error along direction i,
       the Gaussian's entropy being the largest, h(v | y, π) ≤ ½ Σ_S log (2πe D_i).

    So Σ_S log (λ_i / D_i) ≤ 2 log B! for every S, and for the S where D_i < λ_i in particular. One
    example has no order to choose: Σ λ_i, the full bound.
    """
    if examples == 1:
        return float(errors.sum())
    found = errors.double().flatten().sort(descending=True).values
    found = found.clamp(min=torch.finfo(found.dtype).tiny)
    counts = torch.arange(1, len(found) + 1, dtype=found.dtype, device=found.device)
    levels = ((found.log().cumsum(0) - 2 * math.lgamma(examples + 1)) / counts).exp()
    lowered = int((found >= levels).sum())
    return float(lowered * levels[lowered - 1] + found[lowered:].sum())


def trace_bound(asked: Asked) -> Formed:
    """`trace_error` of tr J_D: Cauchy's inequality on the eigenvalues of the full bound.

    tr J_D is exact for small inputs and estimated for large ones, the plan's part always.
    """
    information, prior, planned_by, probes, generator = asked
    size, error = information.size, 0.0
    if size <= DENSE_LIMIT:
        traces = _row(
            fisher_trace(measure(one.message, one.inputs, "exact"), one.mechanism)
            for one in information.parts
        )
    else:  # means of vᵀ J_F v over random signs v
        signs = asked.signs()
        samples = torch.stack([part.squares(signs) for part in information.parts])
        traces, error = samples.mean(1).cpu(), mean_and_error(samples.mean(0))[1]
    if planned_by is not None:
        leaks = [
            plan_information_trace(one.message, one.inputs, planned_by, probes, generator)
            for one in information.parts
        ]
        leak_error = sum(error**2 for _, error in leaks) ** 0.5 / len(leaks)
        traces, error = traces + _row(leak for leak, _ in leaks), (error**2 + leak_error**2) ** 0.5
    trace = float(traces.mean())
    entries, known = (size, 0.0) if prior is None else prior.leading(size, trace)
    total = trace_error(trace, size, prior)
    if math.isinf(total):
        return Formed(total, 0.0, None, total)
    matched = trace_error(trace, size, prior, matched=information.examples)
    ends = _spread((traces + known) / entries**2)
    return Formed(total, total * error / (trace + known), ends, matched)


def _row(numbers: Iterable[float]) -> Tensor:
    return torch.tensor([*numbers], dtype=torch.float64)


def dense_bound(asked: Asked) -> Formed:
    """tr (J_D + J_P)⁻¹ from the eigenvalues; infinite where a direction is left unseen."""
    information, prior, planned_by, *_ = asked
    each = (
        one.matrix()
        if planned_by is None
        else one.matrix() + plan_information(one.message, one.inputs, planned_by)
        for one in information.parts
    )
    small = information.size**2 * len(information.parts) <= 2**27  # to be held for an interval
    kept = [*each] if small else []
    matrix = sum(kept or each, torch.zeros(())) / len(information.parts)
    inverse = _inverse_root(matrix, prior, information)
    if inverse is None:
        return Formed(float("inf"), 0.0, None, float("inf"))
    total = float(inverse.square().sum())
    pulled = [float(((one @ inverse) * (inverse @ (inverse.T @ inverse))).sum()) for one in kept]
    examples, matched = information.examples, total
    if examples > 1:
        matched = matched_error(torch.linalg.svdvals(inverse).square(), examples)
    return Formed(total, 0.0, _reciprocal_spread(total, pulled), matched)


def _inverse_root(data: Tensor, prior: Prior | None, information: MeanInformation) -> Tensor | None:
    """R with R Rᵀ = (J_D + J_P)⁻¹; `None` where it does not exist.

    With a prior of covariance L Lᵀ, R = L U (1 + e)^{-½}, e and U of Lᵀ J_D L: the rounding errors
    of a large J_D cannot drown J_P, and the result is between 0 and the prior's own variance.
    """
    if prior is None:
        values, vectors = torch.linalg.eigh(data)
        resolution = values.abs().max() * len(data) * torch.finfo(information.dtype).eps
        return None if bool(values.min() <= resolution) else vectors * values.rsqrt()
    white = prior.from_white(prior.from_white(data, transposed=True).T, transposed=True)
    values, vectors = torch.linalg.eigh((white + white.T) / 2)
    root: Tensor = prior.from_white((vectors * (1 + values.clamp(min=0)).rsqrt()).T).T
    return root


def iterative_bound(asked: Asked) -> Formed:
    """tr A⁻¹ = E_z[zᵀ A⁻¹ z] over random signs z, each A⁻¹ z by conjugate gradients.

    With a prior of covariance L Lᵀ, A⁻¹ = L (1 + Lᵀ J_D L)⁻¹ Lᵀ. An unfinished solve is below the
    true zᵀ A⁻¹ z, so the result stays a lower bound; without a prior it may never finish, which is
    an error.

    After matching it is the larger of the trace form and of this less the most that matching takes,
    that without a message: `matched_error` is the least Σ λ_i exp(-t_i) over t ≥ 0 with
    Σ t_i = 2 log B!, so what it takes, Σ λ_i (1 - exp(-t_i)), grows with λ, and A⁻¹ is at most the
    prior's covariance.
    """
    information, prior, planned_by, *_ = asked
    if planned_by is not None:
        expected = "be given only with solver='dense' or method='trace'"
        found = f"inputs of {information.size} entries with the iterative solver"
        raise WrongValue("planned_by", expected, found)
    signs = asked.signs()

    def white(rows: Tensor) -> Tensor:
        assert prior is not None
        return rows + prior.from_white(information(prior.from_white(rows)), transposed=True)

    if prior is not None:
        right = prior.from_white(signs, transposed=True)
        solved = prior.from_white(conjugate_gradients(white, right)[0])
    else:
        solved, converged = conjugate_gradients(information, signs)
        if not converged:
            expected = (
                "be given for inputs this large: without one the information is (nearly) singular"
                " and the flat bound could not be computed"
            )
            advice = "Use `GaussianPrior.fit(samples)`, or method='trace'."
            raise WrongValue("prior", expected, "None", advice, assigned=True)
    total, error = mean_and_error((signs * solved).sum(1))
    pulled = [float((solved * part(solved)).sum(1).mean()) for part in information.parts]
    matched = total if information.examples == 1 else _matched(information, prior, signs, total)
    return Formed(total, error, _reciprocal_spread(total, pulled), matched)


def _matched(
    information: MeanInformation, prior: Prior | None, signs: Tensor, total: float
) -> float:
    """The bound after matching, of the full one that only its sum is known of."""
    size, examples = information.size, information.examples
    trace = float(torch.stack([part.squares(signs) for part in information.parts]).mean())
    least = trace_error(trace, size, prior, matched=examples)
    if prior is None:
        return least
    variances = prior.variances.repeat(examples)
    taken = float(variances.sum()) - matched_error(variances, examples)
    return max(least, total - taken)


def _reciprocal_spread(total: float, pulled: list[float]) -> tuple[float, float] | None:
    """The interval from q_b = tr A⁻¹ J_b A⁻¹ of each batch b, to first order in J_b.

    1 / tr A⁻¹ changes by (q_b - q̄) / (tr A⁻¹)²; q̄ ≤ tr A⁻¹, so it stays positive.
    """
    changes = _row(pulled)
    return _spread((1 + (changes - changes.mean()) / total) / total) if pulled and total else None


def _spread(inverse: Tensor) -> tuple[float, float] | None:
    """A 95 % bootstrap interval of 1 / mean over batches, widened by √(n / (n - 1))."""
    count = len(inverse)
    if count < 2:
        return None
    generator = named_stream("bound", count)
    means = inverse[torch.randint(count, (2000, count), generator=generator)].mean(1)
    ends = torch.quantile(means, torch.tensor((0.025, 0.975), dtype=inverse.dtype))
    middle = inverse.mean()
    low, high = (middle + (ends - middle) * (count / (count - 1)) ** 0.5).tolist()
    return 1 / high, (1 / low if low > 0 else float("inf"))
