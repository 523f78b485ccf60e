"""The base class of the noise defenses."""

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from gradveil._checks import (
    check_at_most,
    check_exactly_one,
    check_kind,
    check_not_negative,
    check_positive,
)
from gradveil._tensors import flatten, total
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.sensitivity import Estimator, Moments, check_estimator, check_moments
from gradveil.theory import GaussianPrior, trace_error

from .._base import Defense
from ._plan_option import check_plan_from


@dataclass(frozen=True)
class NoiseDefense(Defense):
    """Gaussian noise of variances Σ_ii = λ r_i; the classes differ in r, the options set λ.

    Exactly one of the three:

    - `scale`: the root mean square of the standard deviations over all entries,
      √(mean_i Σ_ii) = scale. Equal scale is equal total power.
    - `utility_budget`: C ≥ 0 with U2 = -Σ_i g_i² Σ_ii = -C.
    - `target_error`: the bound (trace form) on the mean squared error per entry of the inputs,
      m / tr J_F = target_error if flat, `trace_error` with the given `prior`. tr J_F is
      evaluated at this batch, with a second measurement of the sensitivities where the moments
      have one (`measure(..., judged=True)`; a defense that is called on a message takes it). With
      the estimates that made the plan alone it would come out too small.

    The last two are amounts for the examples of the plan, so they need real ones: public examples
    (`Public`), or the private batch (`plan="private"`).

    >>> from gradveil import OptimalNoise
    >>> issubclass(OptimalNoise, NoiseDefense)
    True
    """

    family = "noise"
    amount_name = "scale"

    scale: float | None = None
    _: KW_ONLY
    utility_budget: float | None = None
    target_error: float | None = None
    prior: GaussianPrior | None = None
    estimator: Estimator | str = "auto"
    plan_from: str = "model"

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
        check_estimator(self.estimator)
        check_plan_from(self.plan_from)

    @property
    def needs_sensitivities(self) -> bool:
        """Isotropic noise looks at sensitivities only to meet a target error."""
        return self.target_error is not None

    @property
    def has_target_error(self) -> bool:
        """Whether `target_error` sets λ."""
        return self.target_error is not None

    @abstractmethod
    def shape(self, moments: Moments) -> Tensors:
        """r_i, the variances up to the constant λ."""

    def plan(self, moments: Moments) -> Mechanism:
        """Σ = λ r, nothing pruned."""
        return self._plan(moments)

    def _plan(self, moments: Moments, clip: float | None = None) -> Mechanism:
        """The same with everything clamped to [-clip, clip] first."""
        check_moments(moments)
        if moments.clip not in (None, clip):
            raise ValueError(
                f"Parameter `moments` should be of the message as it is, or clamped to {clip} as by"
                f" this defense. Found moments clamped to {moments.clip}. Measure again."
            )
        seen = moments
        if clip is not None and self.needs_sensitivities:
            seen = moments.clipped(clip)
        std = roots(self.variances(moments, seen), moments)
        return Mechanism(std, constant_like(1.0, moments.squared_values), clip)

    def variances(self, moments: Moments, seen: Moments, support: Tensors | None = None) -> Tensors:
        """Σ_ii on the support (everywhere if `None`), with λ solved for on it.

        `moments` are those of the message, `seen` those of what is left of it after clipping.
        """
        shape = self.raised(self.shape(seen))
        if support is not None:
            shape = {name: r * support[name] for name, r in shape.items()}
        factor = self._factor(shape, moments, seen, support)
        if not 1 / LARGE < float(factor.detach()) < LARGE:  # squares that float32 may not hold
            return {name: factor * shape.pop(name).double() for name in [*shape]}
        return {name: factor.to(shape[name].dtype) * shape.pop(name) for name in [*shape]}

    def raised(self, shape: Tensors) -> Tensors:
        """The shape with a floor, for noise that some entries would go without."""
        return shape

    def running_traces(self, order: Tensor, moments: Moments) -> Tensor:
        """tr J_F when the first 1, 2, … entries of that order are sent, with this noise."""
        shape, slopes, squares = (
            flatten(tensors)[order].double()
            for tensors in (
                self.raised(self.shape(moments)),
                moments.judged().known_squared_sensitivities,
                moments.squared_values,
            )
        )
        revealed = torch.where(slopes > 0, slopes / shape, 0.0).cumsum(0)
        if self.scale is not None:
            entries = torch.arange(1, len(order) + 1, device=order.device)
            factors = self.scale**2 * entries / shape.cumsum(0)
        elif self.utility_budget is not None:
            factors = self.utility_budget / (squares * shape).cumsum(0)
        else:
            factors = revealed / allowed_trace(self.target_error, moments, self.prior)
        return torch.where(revealed > 0, revealed / factors, 0.0)

    def _factor(
        self, shape: Tensors, moments: Moments, seen: Moments, support: Tensors | None
    ) -> Tensor:
        """λ."""
        if self.scale is not None:
            entries = moments.size if support is None else total(support.values())
            return _divide(self.scale**2 * entries, total(shape.values()))
        if self.utility_budget is not None:
            spent = (g2 * shape[name] for name, g2 in moments.squared_values.items())
            return _divide(self.utility_budget, total(spent))
        slopes = seen.judged().known_squared_sensitivities
        information = (torch.where(r > 0, slopes[name] / r, 0.0) for name, r in shape.items())
        return total(information) / allowed_trace(self.target_error, moments, self.prior)


LARGE = 1e25
"""Of λ: beyond, and below its inverse, variances are computed in float64."""


def roots(variances: Tensors, moments: Moments) -> Tensors:
    """Standard deviations in the precision of the message."""
    kinds = {name: square.dtype for name, square in moments.squared_values.items()}
    return {name: _root(v).to(kinds[name]) for name, v in variances.items()}


def _root(variance: Tensor) -> Tensor:
    """In place; a plan that is differentiated has the slope 0 at √0, not an infinite one."""
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
