"""The base class of the pruning defenses."""

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from gradveil._checks import (
    check_exactly_one,
    check_kind,
    check_not_negative,
    check_positive,
    check_ratio,
)
from gradveil._tensors import flatten, total, unflatten
from gradveil._typing import Tensors
from gradveil.mechanisms import Mechanism, constant_like
from gradveil.sensitivity import Estimator, Moments, check_estimator, check_moments
from gradveil.theory import GaussianPrior

from ._base import Defense
from ._gradient_noise import GradientNoise
from ._optimal_noise import OptimalNoise
from ._planning import (
    NoiseDefense,
    allowed_trace,
    check_plan_from,
    keep_lowest,
    keep_within,
    roots,
)


@dataclass(frozen=True)
class PruningDefense(Defense):
    """Sends the entries with the lowest scores and 0 for the others.

    Exactly one of the three:

    - `ratio`: the share of entries that is pruned, round(ratio · d) of them; ties go by position.
    - `utility_budget`: C with U1 = Σ_kept g_i² = C; the entry on the borderline is kept with the
      probability that meets it (a mixed defense).
    - `target_error`: the bound (trace form) on the mean squared error per entry of the inputs is
      at least this. Needs `noise`: pruning without noise has no bound.

    `noise` is added to what is kept (Eq. 18): `GradientNoise` or `OptimalNoise`, whose scale is
    then the root mean square over the kept entries.

    >>> from gradveil import OptimalPruning
    >>> issubclass(OptimalPruning, PruningDefense)
    True
    """

    amount_name = "ratio"

    ratio: float | None = None
    _: KW_ONLY
    utility_budget: float | None = None
    target_error: float | None = None
    noise: NoiseDefense | None = None
    prior: GaussianPrior | None = None
    estimator: Estimator | str = "auto"
    plan_from: str = "model"

    def __post_init__(self) -> None:
        check_exactly_one(
            ratio=self.ratio, utility_budget=self.utility_budget, target_error=self.target_error
        )
        if self.ratio is not None:
            check_ratio(self.ratio, "ratio")
        if self.utility_budget is not None:
            check_not_negative(self.utility_budget, "utility_budget")
        if self.noise is not None and type(self.noise) not in (GradientNoise, OptimalNoise):
            raise TypeError(
                "Parameter `noise` should be a GradientNoise or an OptimalNoise. Found"
                f" {type(self.noise).__name__}."
            )
        if self.prior is not None:
            check_kind(self.prior, "prior", GaussianPrior, "Use `GaussianPrior.fit(samples)`.")
        check_estimator(self.estimator)
        check_plan_from(self.plan_from)
        if self.target_error is not None:
            check_positive(self.target_error, "target_error")
            if self.noise is None:
                raise ValueError(
                    "Parameter `noise` should be given with `target_error`: pruning alone sends"
                    " entries bare, and no error is guaranteed. Found `noise = None`. Use for"
                    " example noise=GradientNoise(0.01)."
                )

    @property
    def family(self) -> str:
        """ "noisy pruning" where what is kept gets noise."""
        return "pruning" if self.noise is None else "noisy pruning"

    def check_amount_is_known(self) -> None:
        """Its own amount, and that of the noise on what it keeps."""
        super().check_amount_is_known()
        if self.noise is not None:
            self.noise.check_amount_is_known()

    @property
    def has_target_error(self) -> bool:
        """Whether a `target_error` sets the ratio or the noise."""
        noisy = self.noise is not None and self.noise.has_target_error
        return noisy or self.target_error is not None

    @property
    def needs_sensitivities(self) -> bool:
        """Magnitude pruning looks at sensitivities only for its noise or its target."""
        noisy = self.noise is not None and self.noise.needs_sensitivities
        return noisy or self.target_error is not None

    @property
    def needs_curvature(self) -> bool:
        """Where its noise does."""
        return self.noise is not None and self.noise.needs_curvature

    @abstractmethod
    def scores(self, moments: Moments) -> Tensors:
        """The lower the score, the sooner an entry is kept."""

    def plan(self, moments: Moments) -> Mechanism:
        """Keep the lowest scores, noise on what is kept."""
        check_moments(moments)
        scores = flatten(self.scores(moments))
        if self.ratio is not None:
            kept = keep_lowest(scores, moments.size - round(self.ratio * moments.size))
        elif self.utility_budget is not None:
            kept = self._within_budget(scores, moments)
        else:
            kept = keep_lowest(scores, self._most_entries(scores, moments))
        return self._mechanism(kept, moments)

    def _mechanism(self, kept: Tensor, moments: Moments) -> Mechanism:
        keep = unflatten(kept, moments.squared_values)
        if self.noise is None:
            return Mechanism(std=constant_like(0.0, moments.squared_values), keep=keep)
        support = {name: (share > 0).to(share.dtype) for name, share in keep.items()}
        variances = self.noise.variances(moments, moments, support)
        return Mechanism(std=roots(variances, moments), keep=keep)

    def _within_budget(self, scores: Tensor, moments: Moments) -> Tensor:
        assert self.utility_budget is not None
        most = float(total(moments.squared_values.values()))
        if self.utility_budget > most * (1 + 1e-6):
            raise ValueError(
                "Parameter `utility_budget` should be at most the first-order utility without a"
                f" defense, {most:.6g} for these moments. Found `utility_budget ="
                f" {self.utility_budget}`."
            )
        return keep_within(scores, flatten(moments.squared_values), self.utility_budget)

    def _most_entries(self, scores: Tensor, moments: Moments) -> int:
        """The largest number of kept entries whose bound meets the target.

        No bisection: noise of a given scale, spread over more entries, may reveal less.
        """
        assert self.noise is not None
        allowed = allowed_trace(self.target_error, moments, self.prior)
        traces = self.noise.running_traces(scores.argsort(stable=True), moments)
        feasible = (traces <= allowed).nonzero()
        return int(feasible.max()) + 1 if len(feasible) else 0
