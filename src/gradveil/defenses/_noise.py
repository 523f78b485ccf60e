"""Gaussian noise: isotropic and optimal (Theorem 2), clamped and not (Theorem 3)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gradveil._checks import (
    check_at_most,
    check_choice,
    check_exactly_one,
    check_kind,
    check_not_negative,
    check_positive,
    check_ratio,
)
from gradveil._tensors import flatten, total
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.sensitivity import Estimator, Moments, check_moments, named
from gradveil.shapes import Needs, Shape, Source
from gradveil.theory import GaussianPrior, trace_error

from ._adam import TooMuch, adam_levels
from ._base import About, Defense, check_source
from ._levels import (
    capped,
    check_shape_options,
    least_square,
    median_level,
    per_layer,
    raise_to_least,
    sensitivity_shape,
)

LARGE_FACTOR = 1e25
"""Of λ: beyond, and below its inverse, variances are computed in float64."""


@dataclass(frozen=True)
class NoiseDefense(Defense, ABC):
    """Gaussian noise of variances Σ_ii = λ r_i; the classes differ in r, the options set λ.

    Exactly one of the three:

    - `scale`: the root mean square of the standard deviations over all entries,
      √(mean_i Σ_ii) = scale. Equal scale is equal total power.
    - `utility_budget`: C ≥ 0 with U2 = -Σ_i g_i² Σ_ii = -C.
    - `target_error`: the bound (trace form) on the mean squared error per entry of the inputs,
      m / tr J_F = target_error if flat, `trace_error` with the given `prior`. tr J_F is
      evaluated at the examples of the shape, with a second measurement of the sensitivities where
      the moments have one (`measure(..., judged=True)`; a defense that is called on a message takes
      it). With the estimates that made the shape alone it would come out too small.

    The last two are amounts for the examples of the shape, so they need real ones: public examples
    (`source=Public(examples)`), or the private batch (`source="private"`).

    >>> from gradveil import OptimalNoise
    >>> issubclass(OptimalNoise, NoiseDefense)
    True
    """

    scale: float | None = None
    _: KW_ONLY
    utility_budget: float | None = None
    target_error: float | None = None
    prior: GaussianPrior | None = None
    estimator: Estimator | str = "auto"
    source: Source | str = "model"

    def __post_init__(self) -> None:
        check_exactly_one(
            scale=self.scale, utility_budget=self.utility_budget, target_error=self.target_error
        )
        if self.scale is not None:
            check_not_negative(self.scale, "scale")
            check_at_most(self.scale, "scale")
        if self.utility_budget is not None:
            check_not_negative(self.utility_budget, "utility_budget")
            check_at_most(self.utility_budget, "utility_budget")
        if self.target_error is not None:
            check_positive(self.target_error, "target_error")
            check_at_most(self.target_error, "target_error")
        if self.prior is not None:
            check_kind(self.prior, "prior", GaussianPrior, "Use `GaussianPrior.fit(samples)`.")
        if type(self).clip is not None:  # a class that clamps
            check_positive(self.clip, "clip")  # type: ignore[arg-type]  # None is refused here
            check_at_most(self.clip, "clip")  # type: ignore[arg-type]
        named(self.estimator)
        check_source(self)

    @cached_property
    def about(self) -> About:
        return replace(super().about, family="noise", amount="scale")

    @cached_property
    def needs(self) -> Needs:
        """Isotropic noise looks at sensitivities only to meet a target error."""
        target = self.target_error is not None
        examples = "target_error" if target else None
        return replace(
            super().needs,
            moments=self.scale is None,
            sensitivities=target,
            judged=target,
            examples=examples if self.utility_budget is None else "utility_budget",
        )

    @abstractmethod
    def levels(self, shape: Shape, moments: Moments) -> Tensors:
        """r_i, the variances up to the constant λ."""

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """Σ = λ r, nothing pruned; everything is clamped to [-clip, clip] first, if it is given."""
        check_moments(moments)
        if moments.clip not in (None, self.clip):
            raise ValueError(
                f"Parameter `moments` should be of the message as it is, or clamped to {self.clip}"
                f" as by this defense. Found moments clamped to {moments.clip}. Measure again."
            )
        std = roots(self.variances(shape, moments), moments)
        return Mechanism(std, constant_like(1.0, moments.like), self.clip)

    def variances(self, shape: Shape, moments: Moments, support: Tensors | None = None) -> Tensors:
        """Σ_ii on the support (everywhere if `None`), with λ solved for on it."""
        seen = self._seen(moments)
        levels = self.levels(shape, seen)
        if support is not None:
            levels = {name: r * support[name] for name, r in levels.items()}
        entries = moments.size if support is None else total(support.values())
        if shape.floor is not None:
            levels = _with_floor(levels, shape.floor, entries, support)
        factor = self._factor(levels, moments, seen, entries)
        if not 1 / LARGE_FACTOR < float(factor.detach()) < LARGE_FACTOR:  # float32 may not hold it
            return {name: factor * levels.pop(name).double() for name in [*levels]}
        return {name: factor.to(levels[name].dtype) * levels.pop(name) for name in [*levels]}

    def running_traces(self, order: Tensor, shape: Shape, moments: Moments) -> Tensor:
        """tr J_F when the first 1, 2, … entries of that order are sent, with this noise."""
        levels, slopes, squares = (
            flatten(tensors)[order].double()
            for tensors in (
                self.levels(shape, moments),
                moments.judged().known_squared_sensitivities,
                moments.squared_values,
            )
        )
        revealed = torch.where(slopes > 0, slopes / levels, 0.0).cumsum(0)
        if self.scale is not None:
            entries = torch.arange(1, len(order) + 1, device=order.device)
            factors = self.scale**2 * entries / levels.cumsum(0)
        elif self.utility_budget is not None:
            factors = self.utility_budget / (squares * levels).cumsum(0)
        else:
            factors = revealed / allowed_trace(self.target_error, moments, self.prior)
        return torch.where(revealed > 0, revealed / factors, 0.0)

    def _seen(self, moments: Moments) -> Moments:
        """What is left of the message after clamping, where that is looked at."""
        if self.clip is None or moments.squared_sensitivities is None:
            return moments
        return moments.clipped(self.clip)

    def _factor(
        self, levels: Tensors, moments: Moments, seen: Moments, entries: float | Tensor
    ) -> Tensor:
        """λ."""
        if self.scale is not None:
            return _divide(self.scale**2 * entries, total(levels.values()))
        if self.utility_budget is not None:
            spent = (g2 * levels[name] for name, g2 in moments.squared_values.items())
            return _divide(self.utility_budget, total(spent))
        slopes = seen.judged().known_squared_sensitivities
        information = (torch.where(r > 0, slopes[name] / r, 0.0) for name, r in levels.items())
        return total(information) / allowed_trace(self.target_error, moments, self.prior)


@dataclass(frozen=True)
class GradientNoise(NoiseDefense):
    """Isotropic Gaussian noise (Eq. 8 with Σ = scale² I). No (ε, δ) guarantee: nothing is clipped.

    Give `scale`, `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> GradientNoise(scale=0.5).plan(moments).std["w"]
    tensor([0.5000, 0.5000])
    """

    label = "noise"

    def levels(self, shape: Shape, moments: Moments) -> Tensors:
        """The same everywhere."""
        return constant_like(1.0, moments.like)


@dataclass(frozen=True)
class ClampedNoise(GradientNoise):
    """The paper's "DP-SGD", not differentially private: y = clamp(g, -P, P) + scale · ε (Eq. 13).

    Formal guarantees: none of the (ε, δ) kind. This clamps each entry of the BATCH gradient, as
    the paper does; it is not the per-example norm clipping of Abadi et al., and no accountant
    applies to it.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        clip: The threshold P.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> mechanism = ClampedNoise(scale=0.5, clip=1.0).plan(moments)
    >>> mechanism.std["w"], mechanism.clip
    (tensor([0.5000, 0.5000]), 1.0)
    """

    label = "noise with clamping"

    clip: float = 1.0

    @cached_property
    def about(self) -> About:
        return replace(super().about, family="clamped noise")


@dataclass(frozen=True)
class OptimalNoise(NoiseDefense):
    """Σ_ii = λ √(E‖∇_x g_i‖² / E g_i²), which maximises the trace bound at a given utility.

    Proof: tr J_F = Σ s_i²/Σ_ii and -U2 = Σ g_i² Σ_ii; by Cauchy their product is at least
    (Σ s_i |g_i|)², with equality for Σ_ii ∝ s_i / |g_i|.

    The same with h_i in the place of g_i²: at a given curvature cost ½ η² Σ h_i Σ_ii, what noise
    adds to the loss in a step of length η, the bound is largest for Σ_ii ∝ s_i / √h_i. And for
    Adam, which gains Σ g_i²/√(g_i² + Σ_ii) in a step, for the Σ of `adam_levels`, which is spread
    by the amount: (s_i/|g_i|)⁴ where there is much more noise than gradient.

    Moments of one batch give the local form (Eq. 10), Moments over a data set the global one
    (Theorem 2). By default the shape is made from the model alone, so that it says nothing of the
    batch; public examples (`Public`) make a better one. The paper's form, source="private", shows
    an attacker who reads the noise levels what was in the batch, at any scale. No (ε, δ) guarantee
    either way.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        granularity: "parameter", or "layer" for one level per tensor.
        utility: The utility at which the bound is largest: "variance" (the paper's U2),
            "curvature", for which h_i = E g_{b,i}² over examples b takes the place of g_i²
            everywhere in the shape (it needs a message that is a sum over examples), or "adam".
            `utility_budget` is U2 in all cases.
        cap: The largest ratio √E‖∇g_i‖² / √E g_i² that counts, over the median ratio (appendix B:
            an entry whose gradient is near 0 would soak up all the noise).
        floor: The least √E g_i² in the denominator, over the root mean square of the entry's
            tensor. The paper's c is 1e-6 in absolute terms, which depends on units.
        least: The least standard deviation, as a share of the median one in the entry's tensor
            (and a 25th of it, of the median one in the message). An entry without any sensitivity,
            or whose value is exactly 0, gets the mean level of its tensor. So nothing is sent bare,
            or stands out, because of what happens to be 0 on this batch. 0 is the paper's form
            (appendix B), which sends such entries bare: for reproduction only. The default costs
            about 1e-4 of the optimal bound on the paper's models.
        estimator: How sensitivities are measured when the defense is called on a message.
        source: "model", "private", "server" or a `Source`: where the shape comes from when it is
            called on a message.

    >>> import torch
    >>> from gradveil import Moments
    >>> moments = Moments(
    ...     {"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, input_size=2
    ... )
    >>> OptimalNoise(scale=1.0).plan(moments).std["w"]
    tensor([1.2649, 0.6325])
    """

    _: KW_ONLY
    granularity: str = "parameter"
    utility: str = "variance"
    cap: float = 100.0
    floor: float = 1e-4
    least: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape_options(self.granularity, self.cap, self.floor)
        check_choice(self.utility, "utility", ("variance", "curvature", "adam"))
        check_ratio(self.least, "least")

    @cached_property
    def about(self) -> About:
        return replace(super().about, twin=GradientNoise)

    @cached_property
    def needs(self) -> Needs:
        curvature = self.utility == "curvature"
        return replace(super().needs, moments=True, sensitivities=True, curvature=curvature)

    def shape(self, moments: Moments) -> Shape:
        """r_i = √(E‖∇_x g_i‖² / E g_i²)."""
        return sensitivity_shape(self._weighted(self._seen(moments)), self.granularity, self.floor)

    def levels(self, shape: Shape, moments: Moments) -> Tensors:
        """r_i within the limits; for Adam the variances that it asks for."""
        levels, squares = shape.levels(moments.like), self._weighted(moments).squared_values
        if self.granularity == "layer":
            levels = per_layer(levels, squares)
        return levels if shape.floor is not None else self._limited(levels, squares, moments)

    def _limited(self, levels: Tensors, squares: Mapping[str, Tensor], moments: Moments) -> Tensors:
        """None above the cap, and none below the least, which hides entries that are 0."""
        levels = capped(levels, self.cap)
        if self.utility == "adam":
            levels = self._adam_levels(levels, squares, moments)
        if self.least and self.granularity == "parameter":
            levels = {name: levels.pop(name) * (squares[name] > 0) for name in [*levels]}
        levels = self._filled(levels, moments)
        return raise_to_least(levels, self.least) if self.least else levels

    def _filled(self, levels: Tensors, moments: Moments) -> Tensors:
        """With levels for entries that the theorem gives none."""
        return levels

    def _weighted(self, moments: Moments) -> Moments:
        """With what noise costs in the place of g²."""
        if self.utility != "curvature":
            return moments
        return replace(moments, squared_values=moments.known_squared_example_values)

    def _adam_levels(
        self, ratios: Tensors, squares: Mapping[str, Tensor], moments: Moments
    ) -> Tensors:
        if self.granularity == "layer":
            squares = {name: g2.mean().expand(g2.shape) for name, g2 in squares.items()}
        least = {n: g2.clamp(min=least_square(g2, self.floor)) for n, g2 in squares.items()}
        return adam_levels(ratios, least, self._is_too_much(ratios, least, moments))

    def _is_too_much(self, ratios: Tensors, squares: Tensors, moments: Moments) -> TooMuch:
        """By the option that sets the amount."""
        allowed = 0.0
        if self.target_error is not None:  # of a shape, ratios are s/|g| up to a constant
            allowed = allowed_trace(self.target_error, moments, self.prior)
            slopes = moments.known_squared_sensitivities
            wanted = total(torch.where(r > 0, slopes[n] / r, 0.0) for n, r in ratios.items())
            allowed *= float(total(squares[n] * r for n, r in ratios.items()) / wanted)

        def too_much(levels: Tensor, ratio: Tensor, square: Tensor, weight: float) -> bool:
            if self.scale is not None:
                return float(levels.sum()) * weight > self.scale**2 * moments.size
            if self.utility_budget is not None:
                return float((square * levels).sum()) * weight > self.utility_budget
            return float((ratio.square() * square / levels).sum()) * weight < allowed

        return too_much


@dataclass(frozen=True)
class OptimalClampedNoise(OptimalNoise):
    """The paper's "optimal DP-SGD", not differentially private: optimal noise on clamped entries.

    Σ_ii = λ √(E‖∇_x g_P,i‖² / E g_P,i²) with g_P = clamp(g, -P, P) (Theorem 3, Eq. 16).

    A clamped entry is the constant ±P near x, and the theorem gives it no noise. But WHICH entries
    are clamped is a function of the private batch, and bare ±P shows it to everybody. So clamped
    entries get the median level of their tensor; what that costs in U2 is theirs alone. With
    `least=0` (the paper's form) they are sent bare, and there is no bound. Moments over several
    batches must be measured with `measure(..., clip=P)`.

    Formal guarantees: none of the (ε, δ) kind; see `ClampedNoise`. Noise that depends on the
    private batch has none either.

    Args:
        scale: Or `utility_budget` or `target_error`; see `NoiseDefense` for what they mean.
        clip: The threshold P.
        granularity: See `OptimalNoise`, as for `cap`, `floor` and `least`.

    >>> from gradveil import measure
    >>> from gradveil.sensitivity import Exact
    >>> message = lambda inputs: {"w": inputs.square().sum(0)}
    >>> moments = measure(message, torch.tensor([[0.5, 3.0]]), Exact(), clip=1.0)
    >>> OptimalClampedNoise(scale=0.5, clip=1.0).plan(moments).std["w"].shape
    torch.Size([2])
    """

    label = "optimal noise with clamping"

    clip: float = 1.0

    @cached_property
    def about(self) -> About:
        return replace(super().about, family="clamped noise", twin=ClampedNoise)

    def _limited(self, levels: Tensors, squares: Mapping[str, Tensor], moments: Moments) -> Tensors:
        if self.granularity == "parameter":
            inside = self._inside(moments)
            levels = {name: r * inside[name] for name, r in levels.items()}
        return super()._limited(levels, squares, moments)

    def _filled(self, levels: Tensors, moments: Moments) -> Tensors:
        """The median level of the tensor for what is clamped."""
        inside = self._inside(moments)
        levels = {name: r * inside[name] for name, r in levels.items()}
        if not self.least:
            return levels
        return {n: torch.where(inside[n], r, median_level(r)) for n, r in levels.items()}

    def _weighted(self, moments: Moments) -> Moments:
        """Entries that are clamped in every batch do not count."""
        inside, squares = self._inside(moments), moments.squared_values
        unclamped = {n: torch.where(inside[n], square, 0.0) for n, square in squares.items()}
        return super()._weighted(replace(moments, squared_values=unclamped))

    def _inside(self, moments: Moments) -> Tensors:
        return {n: square < self.clip**2 for n, square in moments.squared_values.items()}


def _with_floor(
    levels: Tensors, floor: float, entries: float | Tensor, support: Tensors | None
) -> Tensors:
    """(1 - floor²) r / mean(r) + floor² where entries are sent."""
    least = floor**2
    share = (1 - least) * float(entries) / float(total(levels.values()))
    mixed = {name: r * share + least for name, r in levels.items()}
    return mixed if support is None else {n: r * support[n] for n, r in mixed.items()}


def roots(variances: Tensors, moments: Moments) -> Tensors:
    """Standard deviations in the precision of the message."""
    kinds = {name: value.dtype for name, value in moments.like.items()}
    return {name: _root(v).to(kinds[name]) for name, v in variances.items()}


def _root(variance: Tensor) -> Tensor:
    """In place; a shape that is differentiated has the slope 0 at √0, not an infinite one."""
    if not variance.requires_grad:
        return variance.sqrt_()
    positive = variance > 0
    return torch.where(positive, variance, 1.0).sqrt() * positive


def allowed_trace(
    target_error: float | None, moments: Moments, prior: GaussianPrior | None
) -> float:
    """The largest tr J_F at which the trace bound per entry reaches the target.

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.ones(2)}, {"w": torch.ones(2)}, input_size=4)
    >>> allowed_trace(0.5, moments, prior=None)
    8.0
    """
    assert target_error is not None
    if moments.hidden:
        raise ValueError(
            "Parameter `target_error` should be used where derivatives show how the message depends"
            f" on the inputs. Found {moments.hidden} entries that move although their derivative is"
            " 0 (detach, rounding, an opaque function): no error can be promised. Use `scale`."
        )
    m = moments.input_size
    allowed = m / target_error
    if prior is not None:
        allowed = prior.allowed_trace(m, m * target_error)
    if allowed <= 0:
        raise ValueError(
            "Parameter `target_error` should be below what the prior alone leaves of the error,"
            f" {trace_error(0.0, m, prior) / m:.4g} per entry in the trace bound. Found"
            f" `target_error = {target_error}`. No defense can reach it; ask for less."
        )
    return allowed


def _divide(numerator: float | Tensor, denominator: Tensor) -> Tensor:
    """0 where there is nothing to spread noise on."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)
