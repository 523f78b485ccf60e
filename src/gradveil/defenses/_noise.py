"""Gaussian noise: isotropic and optimal (Theorem 2), clamped and not (Theorem 3)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradveil._checks import (
    LARGEST,
    WrongValue,
    check_at_most,
    check_choice,
    check_exactly_one,
    check_kind,
    check_not_negative,
    check_positive,
    check_ratio,
)
from gradveil._tensors import Tensors, flatten, total
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.sensitivity import Estimator, Moments, estimator_of
from gradveil.shapes import Shape, Source
from gradveil.theory import GaussianPrior, trace_error

from ._base import Defense, check_source


@dataclass(frozen=True)
class NoiseDefense(Defense, ABC, family="noise", amount="scale"):
    """Gaussian noise of variances Σ_ii = λ r_i; the classes differ in r, the options set λ.

    Exactly one of the three:

    - `scale`: the root mean square of the standard deviations over all entries,
      √(mean_i Σ_ii) = scale. Equal scale is equal total power.
    - `utility_budget`: C ≥ 0 with U2 = -Σ_i g_i² Σ_ii = -C.
    - `target_error`: the bound (trace form) on the mean squared error per entry of the inputs,
      m / tr J_F = target_error if flat, `trace_error` with the given `prior`. tr J_F is
      evaluated at the examples of the shape, with a second measurement of the sensitivities where
      the moments have one (`measure(..., judged=True)`; a defense that is called on a message takes
      it). Judged by the shape's own estimates alone, tr J_F would be underestimated.

    The last two are amounts for the examples of the shape, so they need real ones: public examples
    (`source=Public(examples)`), or the private batch (`source="private"`).

    >>> isinstance(GradientNoise(scale=0.1), NoiseDefense)
    True
    """

    reads = "nothing"

    scale: float | None = None
    _: KW_ONLY
    utility_budget: float | None = None
    target_error: float | None = None
    prior: GaussianPrior | None = None
    estimator: Estimator | str = "auto"
    source: Source | str = "model"

    def __post_init__(self) -> None:
        check_amount(self, "scale")
        if type(self).clip is not None:  # a class that clamps
            check_positive(self.clip, "clip")  # type: ignore[arg-type]  # None is refused here
            check_at_most(self.clip, "clip")  # type: ignore[arg-type]

    @abstractmethod
    def levels(self, shape: Shape, moments: Moments) -> Tensors:
        """r_i, the variances up to the constant λ."""

    def mechanism(self, shape: Shape, moments: Moments) -> Mechanism:
        """Σ = λ r, nothing pruned; everything is clamped to [-clip, clip] first, if it is given."""
        if moments.clip not in (None, self.clip):
            expected = f"be of the message as it is, or clamped to {self.clip} as by this defense"
            found = f"moments clamped to {moments.clip}"
            raise WrongValue("moments", expected, found, "Measure again.")
        std = roots(self.variances(shape, moments), moments)
        return Mechanism(std, constant_like(1.0, moments.like), self.clip)

    def variances(self, shape: Shape, moments: Moments, support: Tensors | None = None) -> Tensors:
        """Σ_ii on the support (everywhere if `None`), with λ solved for on it."""
        seen = self._seen(moments)
        levels = self.levels(shape, seen)
        if support is not None:
            levels = {name: r * support[name] for name, r in levels.items()}
        entries = moments.size if support is None else total(support.values())
        if shape.floor is not None:  # (1 - floor²) r / mean(r) + floor² where entries are sent
            least = shape.floor**2
            share = (1 - least) * float(entries) / (float(total(levels.values())) or 1.0)
            sent: Any = support or dict.fromkeys(levels, 1.0)
            levels = {name: (r * share + least) * sent[name] for name, r in levels.items()}
        factor = self._factor(levels, moments, seen, entries)
        if not 1e-25 < float(factor.detach()) < 1e25:  # float32 may not hold it
            levels = {name: r.double() for name, r in levels.items()}
        return {name: factor.to(levels[name].dtype) * levels.pop(name) for name in [*levels]}

    def running_traces(self, order: Tensor, shape: Shape, moments: Moments) -> Tensor:
        """tr J_F when the first 1, 2, … entries of that order are sent, with this noise."""
        seen = moments.judged().known_squared_sensitivities
        rows = self.levels(shape, moments), seen, moments.squared_values
        levels, slopes, squares = (flatten(row)[order].double() for row in rows)
        revealed = torch.where(slopes > 0, slopes / levels, 0.0).cumsum(0)
        if self.scale is not None:
            entries = torch.arange(1, len(order) + 1, device=order.device)
            factors = self.scale**2 * entries / levels.cumsum(0)
        elif self.utility_budget is not None:
            factors = self.utility_budget / (squares * levels).cumsum(0)
        else:
            factors = revealed / allowed_trace(self, moments)
        return torch.where(revealed > 0, revealed / factors, 0.0)

    def _seen(self, moments: Moments) -> Moments:
        """The moments of the clamped message, if sensitivities are known."""
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
        return total(information) / allowed_trace(self, moments)


@dataclass(frozen=True)
class GradientNoise(NoiseDefense, label="noise"):
    """Isotropic Gaussian noise (Eq. 8 with Σ = scale² I). No (ε, δ) guarantee: nothing is clipped.

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> GradientNoise(scale=0.5).plan(moments).std["w"]
    tensor([0.5000, 0.5000])
    """

    def levels(self, shape: Shape, moments: Moments) -> Tensors:
        """The same everywhere."""
        return constant_like(1.0, moments.like)


@dataclass(frozen=True)
class ClampedNoise(GradientNoise, label="noise with clamping", family="clamped noise"):
    """The paper's "DP-SGD", not differentially private: y = clamp(g, -P, P) + scale · ε (Eq. 13).

    Formal guarantees: none of the (ε, δ) kind. This clamps each entry of the BATCH gradient to the
    threshold P = `clip`, as the paper does; it is not the per-example norm clipping of Abadi et
    al., and no accountant applies to it.

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> mechanism = ClampedNoise(scale=0.5, clip=1.0).plan(moments)
    >>> mechanism.std["w"], mechanism.clip
    (tensor([0.5000, 0.5000]), 1.0)
    """

    clip: float = 1.0


@dataclass(frozen=True)
class OptimalNoise(NoiseDefense, twin=GradientNoise):
    """Σ_ii = λ √(E‖∇_x g_i‖² / E g_i²), which maximises the trace bound at a given utility.

    Proof: tr J_F = Σ s_i²/Σ_ii and -U2 = Σ g_i² Σ_ii; by Cauchy their product is at least
    (Σ s_i |g_i|)², with equality for Σ_ii ∝ s_i / |g_i|.

    The same holds with other costs in the place of g_i² (`plan` of other `squared_values`): for the
    curvature cost ½ η² Σ h_i Σ_ii, what noise adds to the loss in a step of length η, h_i is
    `Moments.squared_example_values`.

    Moments of one batch give the local form (Eq. 10), Moments over a data set the global one
    (Theorem 2). By default the shape is made from the model alone, so that it says nothing of the
    batch; public examples (`Public`) make a better one. The paper's form, source="private", shows
    an attacker who reads the noise levels what was in the batch, at any scale. No (ε, δ) guarantee
    either way.

    Args:
        granularity: "parameter", or "layer" for one level per tensor.
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

    >>> from gradveil import Moments
    >>> moments = Moments({"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([4.0, 1.0])}, 2)
    >>> OptimalNoise(scale=1.0).plan(moments).std["w"]
    tensor([1.2649, 0.6325])
    """

    reads = "sensitivities"

    _: KW_ONLY
    granularity: str = "parameter"
    cap: float = 100.0
    floor: float = 1e-4
    least: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shape_options(self.granularity, self.floor)
        check_positive(self.cap, "cap", finite=False)
        check_ratio(self.least, "least")

    def shape(self, moments: Moments) -> Shape:
        """r_i = √(E‖∇_x g_i‖² / E g_i²)."""
        seen = self._seen(moments)
        weighted = replace(seen, squared_values=self._unclamped(seen.squared_values, moments))
        return sensitivity_shape(weighted, self.granularity, self.floor)

    def levels(self, shape: Shape, moments: Moments) -> Tensors:
        """r_i within the limits, but for a shape that has limits of its own.

        None is above the cap, and none below the least, which hides entries that are 0. What is
        clamped gets the median level of its tensor.
        """
        levels, squares = shape.levels(moments.like), moments.squared_values
        by_entry = self.granularity == "parameter"
        if not by_entry:
            levels = per_layer(levels, self._unclamped(squares, moments))
        if shape.floor is not None:
            return levels
        levels = capped(self._unclamped(levels, moments), self.cap)
        if not self.least:
            return levels
        if by_entry:
            levels = {name: levels.pop(name) * (squares[name] > 0) for name in [*levels]}
        if self.clip is not None:
            inside = self._inside(moments)
            levels = {n: torch.where(inside[n], r, median_level(r)) for n, r in levels.items()}
        return raise_to_least(levels, self.least)

    def _unclamped(self, tensors: Any, moments: Moments) -> Any:
        """With 0 for entries that are clamped in every batch, which do not count.

        Where nothing is clamped these are the tensors themselves: squares stay to be computed.
        """
        if self.clip is None:
            return tensors
        inside = self._inside(moments)
        return {name: torch.where(inside[name], each, 0.0) for name, each in tensors.items()}

    def _inside(self, moments: Moments) -> Tensors:
        assert self.clip is not None
        return {n: square < self.clip**2 for n, square in moments.squared_values.items()}


@dataclass(frozen=True)
class OptimalClampedNoise(
    OptimalNoise, label="optimal noise with clamping", family="clamped noise", twin=ClampedNoise
):
    """The paper's "optimal DP-SGD", not differentially private: optimal noise on clamped entries.

    Σ_ii = λ √(E‖∇_x g_P,i‖² / E g_P,i²) with g_P = clamp(g, -P, P) (Theorem 3, Eq. 16).

    A clamped entry is the constant ±P near x, and the theorem gives it no noise. But WHICH entries
    are clamped is a function of the private batch, and bare ±P shows it to everybody. So clamped
    entries get the median level of their tensor; what that costs in U2 is theirs alone. With
    `least=0` (the paper's form) they are sent bare, and there is no bound. Moments over several
    batches must be measured with `measure(..., clip=P)`.

    Formal guarantees: none of the (ε, δ) kind; see `ClampedNoise`, and `OptimalNoise` for what the
    options mean. Noise that depends on the private batch has none either.

    >>> from gradveil import measure
    >>> from gradveil.sensitivity import Exact
    >>> message = lambda inputs: {"w": inputs.square().sum(0)}
    >>> moments = measure(message, torch.tensor([[0.5, 3.0]]), Exact(), clip=1.0)
    >>> OptimalClampedNoise(scale=0.5, clip=1.0).plan(moments).std["w"].shape
    torch.Size([2])
    """

    clip: float = 1.0


def check_amount(defense: Any, name: str, most: float = LARGEST) -> None:
    """Require one of the three ways to say how much, and what all that measure have."""
    names = (name, "utility_budget", "target_error")
    amounts = {name: getattr(defense, name) for name in names}
    check_exactly_one(**amounts)
    for name, amount in amounts.items():
        if amount is not None:
            (check_positive if name == "target_error" else check_not_negative)(amount, name)
            check_at_most(amount, name, most)
    if defense.prior is not None:
        check_kind(defense.prior, "prior", GaussianPrior, "Use `GaussianPrior.fit(samples)`.")
    estimator_of(defense.estimator)
    check_source(defense)


def roots(variances: Tensors, moments: Moments) -> Tensors:
    """Standard deviations in the precision of the message.

    In place; a shape that is differentiated has the slope 0 at √0, not an infinite one.
    """
    stds = {}
    for name, variance in variances.items():
        if variance.requires_grad:
            positive = variance > 0
            std = torch.where(positive, variance, 1.0).sqrt() * positive
        else:
            std = variance.sqrt_()
        stds[name] = std.to(moments.like[name].dtype)
    return stds


def allowed_trace(defense: Any, moments: Moments) -> float:
    """The largest tr J_F at which the trace bound per entry reaches the defense's target."""
    target_error, prior, m = defense.target_error, defense.prior, moments.input_size
    if moments.hidden:
        raise WrongValue(
            "target_error",
            "be used where derivatives show how the message depends on the inputs",
            f"{moments.hidden} entries that move although their derivative is 0 (detach, rounding,"
            " an opaque function): no error can be promised",
            "Use `scale`.",
        )
    allowed = m / target_error if prior is None else prior.allowed_trace(m, m * target_error)
    if allowed <= 0:
        most = f"{trace_error(0.0, m, prior) / m:.4g} per entry in the trace bound"
        expected = f"be below what the prior alone leaves of the error, {most}"
        advice = "No defense can reach it; ask for less."
        raise WrongValue("target_error", expected, str(target_error), advice, assigned=True)
    return float(allowed)


def _divide(numerator: float | Tensor, denominator: Tensor) -> Tensor:
    """0 where there is nothing to spread noise on."""
    return torch.where(denominator > 0, numerator / denominator, 0.0)


def check_shape_options(granularity: str, floor: float) -> None:
    """Require options that make sense."""
    check_choice(granularity, "granularity", ("parameter", "layer"))
    check_not_negative(floor, "floor")
    check_at_most(floor, "floor")


def sensitivity_shape(moments: Moments, granularity: str, floor: float) -> Shape:
    """r_i = √E‖∇g_i‖² / √E g_i²; 0 where s_i is 0.

    The denominator is at least `floor` times the root mean square of the entry's tensor, which is
    relative, so that the units of inputs, weights and loss change nothing. For granularity "layer"
    the means over each tensor take the place of the entries: one level for each tensor, which is
    the optimum among such shapes.
    """
    slopes, ratios = moments.known_squared_sensitivities, {}
    for name, squares in moments.squared_values.items():
        slope = slopes[name]
        if granularity == "layer":
            slope, squares = slope.mean(), squares.mean()
        limits = torch.finfo(squares.dtype)
        # roots before the quotient: no square overflows; none of 0: its slope is infinite
        value = squares.clamp(min=least_square(squares, floor)).sqrt()
        ratio = (slope.clamp(min=limits.tiny).sqrt() / value).clamp(max=limits.max)
        ratios[name] = (ratio * slope.sign(),)
    return Shape(ratios, silent=True)


def per_layer(levels: Tensors, weights: Mapping[str, Tensor]) -> Tensors:
    """One level for each tensor: √(Σ r_i² w_i / Σ w_i)."""
    means = dict(levels)
    for name, level in levels.items():
        if level.numel() and any(level.stride()):  # else it is one number, expanded, and stays one
            weight = weights[name]
            if not float(weight.sum(dtype=torch.float64)) > 0:
                weight = torch.ones_like(weight)
            spent = (level.square() * weight).sum(dtype=torch.float64)
            mean = (spent / weight.sum(dtype=torch.float64)).sqrt()
            means[name] = mean.to(level.dtype).expand(level.shape)
    return means


def capped(levels: Tensors, cap: float) -> Tensors:
    """At most `cap` times the median of all; in the given dict, which spares memory."""
    limit = cap * (median_level(*levels.values()) or torch.inf)
    for name, level in levels.items():
        levels[name] = level.clamp(max=min(limit, torch.finfo(level.dtype).max))
    return levels


def least_square(squares: Tensor, floor: float) -> float:
    """The least E g_i² that counts: floor² times the mean over the tensor, and no 0."""
    mean = float(squares.detach().mean(dtype=torch.float64)) if squares.numel() else 0.0
    return max(floor**2 * mean, torch.finfo(squares.dtype).tiny)


def raise_to_least(levels: Tensors, least: float) -> Tensors:
    """Variances with a floor: no entry is sent (nearly) bare. The given dict is used up.

    An entry of level 0 gets the mean level of its tensor, so that it looks like the others: no
    sensitivity or no value on this batch (an unused row, a dead unit, a clamped entry) is
    information, too. All others get at least least² times the median of their tensor, and
    (least/25)² times the median of the message: a path that autograd hardly sees must not leave a
    whole tensor next to bare. Where a whole tensor has level 0, the median of the message stands
    for its mean; where all have, 1 does.
    """
    middle = median_level(*levels.values()) or 1.0
    least_of_all = (least / 25) ** 2 * middle
    return {n: _raised(levels.pop(n), least, middle, least_of_all) for n in [*levels]}


def _raised(level: Tensor, least: float, middle: float, least_of_all: float) -> Tensor:
    if level.numel() and not any(level.stride()):  # one number, expanded: it stays one
        number = level.as_strided((), ())
        filled = torch.where(number > 0, number.clamp(min=least_of_all), middle)
        return filled.expand(level.shape)
    floor = max(least**2 * median_level(level), least_of_all)
    positive = level > 0
    count = positive.sum()
    if int(count) == level.numel():
        return level.clamp(min=floor)
    mean = level.sum() / count if int(count) else middle
    return torch.where(positive, level.clamp(min=floor), mean)


def median_level(*levels: Tensor) -> float:
    """Of what is above 0, from about 2¹⁰ entries, evenly spread; 0 where there is none."""
    rows = [level.detach().reshape(-1) for level in levels]
    for spread in (max(1, sum(map(len, rows)) // 2**10), 1):
        sample = torch.cat([row[::spread] for row in rows])
        positive = sample[sample > 0]
        if len(positive):
            return float(positive.median())
    return 0.0
