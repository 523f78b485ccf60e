"""Pruning: by magnitude and optimal (Theorem 4), with noise on what is kept or without."""

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradveil._checks import WrongType, WrongValue, check_ratio
from gradveil._tensors import flatten, total, unflatten
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.sensitivity import Estimator, Moments
from gradveil.shapes import Needs, Shape, Source
from gradveil.theory import GaussianPrior

from ._base import About, Defense
from ._noise import (
    GradientNoise,
    NoiseDefense,
    OptimalNoise,
    allowed_trace,
    check_amount,
    check_shape_options,
    per_layer,
    roots,
    sensitivity_shape,
)


@dataclass(frozen=True)
class PruningDefense(Defense, ABC, amount="ratio"):
    """Sends the entries with the lowest scores and 0 for the others.

    Exactly one of the three:

    - `ratio`: the share of entries that is pruned, round(ratio · d) of them.
    - `utility_budget`: C with U1 = Σ_kept g_i² = C; the entry on the borderline is kept with the
      probability that meets it (a mixed defense).
    - `target_error`: the bound (trace form) on the mean squared error per entry of the inputs is
      at least this. Needs `noise`: pruning without noise has no bound.

    `noise` is added to what is kept (Eq. 18): `GradientNoise` or `OptimalNoise`, whose scale is
    then the root mean square over the kept entries, in the shape that also decides what is kept.

    >>> isinstance(GradientPruning(ratio=0.5), PruningDefense)
    True
    """

    reads = "values"

    noisy: ClassVar[str]
    """A class's label where it has noise, if that is not its own "with noise"."""

    ratio: float | None = None
    _: KW_ONLY
    utility_budget: float | None = None
    target_error: float | None = None
    noise: NoiseDefense | None = None
    prior: GaussianPrior | None = None
    estimator: Estimator | str = "auto"
    source: Source | str = "model"

    def __post_init__(self) -> None:
        if self.ratio is not None:
            check_ratio(self.ratio, "ratio")
        if self.noise is not None and type(self.noise) not in (GradientNoise, OptimalNoise):
            expected = "be a GradientNoise or an OptimalNoise"
            raise WrongType("noise", expected, type(self.noise).__name__)
        check_amount(self, "ratio", most=float("inf"))
        if self.target_error is not None and self.noise is None:
            bare = "pruning alone sends entries bare, and no error is guaranteed"
            expected, advice = f"be given with `target_error`: {bare}", "noise=GradientNoise(0.01)"
            raise WrongValue("noise", expected, "None", f"Use for example {advice}.", assigned=True)

    @cached_property
    def about(self) -> About:
        about, family = super().about, "pruning" if self.noise is None else "noisy pruning"
        noisy = vars(type(self)).get("noisy", f"{about.label} with noise")
        label = about.label if self.noise is None else noisy
        varies = about.private and about.needs.sensitivities  # else the message shows its choices
        return replace(about, label=label, family=family, varies=varies)

    @cached_property
    def needs(self) -> Needs:
        """Those of its noise, too."""
        own = super().needs
        if self.noise is None:
            return own
        noise = self.noise.needs
        return replace(
            own,
            sensitivities=own.sensitivities or noise.sensitivities,
            judged=own.judged or noise.judged,
            examples=own.examples or noise.examples,
        )

    @abstractmethod
    def scores(self, shape: Shape, moments: Moments) -> Tensor:
        """In one row: the lower the score, the sooner an entry is kept."""

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """Keep the lowest scores, noise on what is kept."""
        keep = unflatten(self._kept(shape, moments), moments.like)
        if self.noise is None:
            return Mechanism(std=constant_like(0.0, moments.like), keep=keep)
        support = {name: (share > 0).to(share.dtype) for name, share in keep.items()}
        variances = self.noise.variances(shape, moments, support)
        return Mechanism(std=roots(variances, moments), keep=keep)

    def _kept(self, shape: Shape, moments: Moments) -> Tensor:
        """In one row; of equal scores the larger entries are kept."""
        scores, ties = self.scores(shape, moments), -flatten(moments.squared_values)
        if self.ratio is not None:
            return keep_lowest(scores, moments.size - round(self.ratio * moments.size), ties)
        if self.utility_budget is None:
            most = self._most_entries(in_order(scores, ties), shape, moments)
            return keep_lowest(scores, most, ties)
        bare = float(total(moments.squared_values.values()))
        if self.utility_budget > bare * (1 + 1e-6):
            limit = f"the first-order utility without a defense, {bare:.6g} for these moments"
            found = str(self.utility_budget)
            raise WrongValue("utility_budget", f"be at most {limit}", found, assigned=True)
        return keep_within(scores, -ties, self.utility_budget, ties)

    def _most_entries(self, order: Tensor, shape: Shape, moments: Moments) -> int:
        """The largest number of kept entries whose bound meets the target.

        No bisection: noise of a given scale, spread over more entries, may reveal less.
        """
        assert self.noise is not None
        allowed = allowed_trace(self, moments)
        traces = self.noise.running_traces(order, shape, moments)
        feasible = (traces <= allowed).nonzero()
        return int(feasible.max()) + 1 if len(feasible) else 0


@dataclass(frozen=True)
class GradientPruning(PruningDefense, label="pruning"):
    """Prunes the entries of smallest E g_i² (Eq. 17). No guarantee unless `noise` is added.

    Which entries are the largest is read off the private batch, as everybody does, and everybody
    can see which they are; with `Public` they are those of public examples.

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> GradientPruning(ratio=0.5).plan(moments).apply({"w": torch.tensor([3.0, -9.0])})
    {'w': tensor([ 0., -9.])}
    """

    source: Source | str = "private"
    noisy = "noisy pruning"

    def shape(self, moments: Moments) -> Shape:
        """That of its noise."""
        return super().shape(moments) if self.noise is None else self.noise.shape(moments)

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """The least entry that was kept is the threshold.

        With noise every kept entry g + std ε is above the threshold at least half of the time, so
        that their median is a safe limit.
        """
        kept = sent[~pruned].abs()
        limit = kept.min() if self.noise is None else kept.median()
        return torch.full_like(sent, float(limit))

    def scores(self, shape: Shape, moments: Moments) -> Tensor:
        """The largest values first."""
        return -flatten(moments.squared_values)


@dataclass(frozen=True)
class OptimalPruning(PruningDefense, twin=GradientPruning):
    """Prunes the entries of LARGEST r_i² = E‖∇_x g_i‖² / E g_i² (the paper prints "smallest").

    At a given first-order utility Σ_kept g_i² the information Σ_kept s_i² is least when the
    entries with the least s_i² per g_i² are kept: a fractional knapsack. Entries with E g_i² = 0
    are worth nothing and go first. With optimal noise on what is kept the order is the same.

    Args:
        granularity: "parameter", or "layer" for one score per tensor.

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> OptimalPruning(ratio=0.5).plan(moments).apply({"w": torch.tensor([3.0, -9.0])})
    {'w': tensor([ 0., -9.])}
    """

    reads, noisy = "sensitivities", "optimal noisy pruning"

    _: KW_ONLY
    granularity: str = "parameter"
    floor: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape_options(self.granularity, self.floor)

    def shape(self, moments: Moments) -> Shape:
        """r_i = √(E‖∇_x g_i‖² / E g_i²), by entries where its noise differs by entries."""
        fine = isinstance(self.noise, OptimalNoise) and self.noise.granularity == "parameter"
        return sensitivity_shape(moments, "parameter" if fine else self.granularity, self.floor)

    def pruned_limits(self, sent: Tensor, pruned: Tensor, sensitivity: Tensor | None) -> Tensor:
        """s_i over the threshold on s_i / |g_i|, which the kept entries show.

        It is known only as well as the sensitivities are at the attacker's estimate: at a poor one
        half of the true values were beyond it, so no limit is below the median of what was kept.
        """
        if sensitivity is None:
            return super().pruned_limits(sent, pruned, sensitivity)
        kept = sent[~pruned].abs()
        ratios = (sensitivity[~pruned] / kept).sort().values
        share = 0.98 if self.noise is None else 0.5
        threshold = ratios[int(share * (len(ratios) - 1))].clamp(min=1e-30)
        # half as much again: the client's sensitivities are estimates, too
        return (1.5 * sensitivity / threshold).clamp(min=float(kept.median()))

    def scores(self, shape: Shape, moments: Moments) -> Tensor:
        """r_i; infinite where the entry is 0."""
        levels, squares = shape.levels(moments.like), moments.squared_values
        if self.granularity == "layer":
            return flatten(per_layer(levels, squares))
        return torch.where(flatten(squares) > 0, flatten(levels), torch.inf)


def keep_lowest(scores: Tensor, count: int, ties: Tensor | None = None) -> Tensor:
    """1 for the `count` lowest scores, 0 elsewhere.

    Of equal scores the entries of the lowest `ties` are kept, where there are any, and then the
    earlier ones. One selection instead of a sort: everything below the count-th score, then ties.
    """
    if count == 0:
        return torch.zeros_like(scores)
    threshold = scores.kthvalue(count).values
    below, tied = scores < threshold, scores == threshold
    missing = count - int(below.sum())
    if ties is None or int(tied.sum()) == missing:
        return (below | (tied & (tied.cumsum(0) <= missing))).to(scores.dtype)
    kept = below.to(scores.dtype)
    kept[tied] = keep_lowest(ties[tied], missing).to(scores.dtype)
    return kept


def in_order(scores: Tensor, ties: Tensor | None = None) -> Tensor:
    """The entries by rising scores; of equal ones those of the lowest `ties` first."""
    if ties is None:
        return scores.argsort(stable=True)
    first = ties.argsort(stable=True)
    return first[scores[first].argsort(stable=True)]


def keep_within(
    scores: Tensor, weights: Tensor, budget: float, ties: Tensor | None = None
) -> Tensor:
    """Keep in the order of rising scores until Σ weights · keep = budget.

    The fractional knapsack: the entry on the borderline is kept with the probability that meets
    the budget in expectation.
    """
    order = in_order(scores, ties)
    own = weights[order].double()
    before = own.cumsum(0) - own
    share = ((budget - before) / own.clamp(min=1e-300)).clamp(0, 1) * (own > 0)
    return torch.empty_like(scores).scatter_(0, order, share.to(scores.dtype))
