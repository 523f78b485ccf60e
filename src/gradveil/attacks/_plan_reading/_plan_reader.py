"""The attack that reads the noise levels: a plan made from the private batch is evidence of it."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from gradveil._checks import check_count, check_kind, check_methods, check_not_negative
from gradveil._random import generator_or_fresh, seed_from
from gradveil.theory import GaussianPrior

from .._attack import Attack, Progress
from .._evidence import Energy, TotalVariation, energy_of
from .._observation import Observation, check_observation
from .._reconstruction import Reconstruction
from .._search import Cost, Descent, Minimum, Watch, clamp, labels_of, minimise, noise_start
from ._layers import read_image, readable_layer
from ._likelihood import PlanLikelihood, plan_can_be_read


@dataclass(frozen=True)
class PlanReader(Attack):
    """Minimises ½ Σ_i ((y_i - g_i(x))² / Σ_i(x) + log Σ_i(x)) + E(x), Σ(x) the plan at x.

    Optimal noise that is planned from the private batch has the variance λ s_i(x) / |g_i(x)|: its
    levels depend on the batch, and they can be read however large the noise is. For one example
    the columns of a linear layer show the layer's input, `read_columns`: pixels where the layer
    reads the image, else features, which are inverted. From there and from noise it descends on the
    cost above, and the most likely end wins.

    Where the plan is public, or the same for all entries, the second term is a constant and there
    is nothing to read: what is left is the likelihood of the message.

    Args:
        steps: For inverting features.
        polish: Steps on the likelihood with the levels as a function of the candidate.
        prior: `TotalVariation`, the theory's `GaussianPrior`, or `None` (flat).
        lr: The rate of these steps.
        probes: Random directions for the sensitivities at a candidate.
        time_budget: Seconds after which the best so far is returned.
        progress: Called with (step, steps, cost).

    >>> PlanReader(steps=100).polish
    40
    """

    knows_defense = True

    steps: int = 600
    polish: int = 40
    prior: Energy | GaussianPrior | None = field(default_factory=lambda: TotalVariation(6.0))
    _: KW_ONLY
    lr: float = 0.02
    probes: int = 8
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "polish", "probes"):
            check_count(getattr(self, name), name)
        check_not_negative(self.lr, "lr")
        if self.prior is not None and not isinstance(self.prior, GaussianPrior):
            check_methods(self.prior, "prior", ("gradient", "curvature"), "`TotalVariation()`")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack one observation whose defense or mechanism is known."""
        check_observation(observation)
        if observation.defense is None and observation.mechanism is None:
            raise ValueError(
                "Parameter `observation` should tell the defense or the mechanism. Found neither."
                " Use ThreatModel(mechanism='known'), or an unaware attack."
            )
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        known = replace(observation, labels=labels_of(observation, generator))
        drawn = clamp(noise_start(known, 1, generator), known.low, known.high)
        starts = [*self._read(known, generator, watch), drawn[0]]
        return self._best(known, starts, generator, watch)

    def improve(
        self, observation: Observation, result: Reconstruction, generator: torch.Generator
    ) -> Reconstruction:
        """The same from another attack's result beside what is read; labels are known.

        The result itself is returned where nothing is read, or nothing that is more likely.
        """
        check_kind(result, "result", Reconstruction, "Run an attack.")
        watch = Watch(self.time_budget)
        read = self._read(observation, generator, watch)
        if not read:
            return result
        return self._best(observation, [*read, result.inputs], generator, watch)

    @property
    def work(self) -> float:
        """A step on the likelihood costs about three gradients a probe; two starts take it."""
        return 0.5 * self.steps + 6.0 * self.probes * self.polish

    @property
    def reports(self) -> float:
        """Only the last part tells."""
        return 2.0 * self.polish

    def _read(
        self, observation: Observation, generator: torch.Generator, watch: Watch
    ) -> list[Tensor]:
        """The image that the levels show, if there is one."""
        if observation.batch_size != 1 or not plan_can_be_read(observation):
            return []
        layer = readable_layer(observation, generator)
        if layer is None:
            return []
        image = read_image(observation, layer, self.steps, generator, watch)
        return [] if image is None else [image]

    def _best(
        self,
        observation: Observation,
        starts: Sequence[Tensor],
        generator: torch.Generator,
        watch: Watch,
    ) -> Reconstruction:
        """Each start descends; the most likely end wins."""
        labels, energy = observation.labels, energy_of(self.prior)
        assert labels is not None
        likelihood = PlanLikelihood(observation, labels, self.probes, seed_from(generator) % 2**31)

        def cost(inputs: Tensor, progress: float = 1.0) -> Tensor:
            return likelihood(inputs) + energy(inputs)

        ends = [self._descend(cost, observation, start, watch) for start in starts]
        end = min(ends, key=lambda end: float(end.costs[0]))
        history = [(step, float(past[0])) for step, past in end.history]
        return Reconstruction(end.inputs[0], labels, float(end.costs[0]), history, end.status)

    def _descend(
        self, cost: Cost, observation: Observation, start: Tensor, watch: Watch
    ) -> Minimum:
        descent = Descent(self.polish, self.lr, "adam", "cosine", 10, watch.left())
        low, high = observation.low, observation.high
        return minimise(cost, start[None], descent, low=low, high=high, progress=self.progress)
