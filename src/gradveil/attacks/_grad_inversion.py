"""GradInversion: gradient matching with BatchNorm statistics and a consensus of several seeds."""

from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh

from ._attack import FINISHED, INTERRUPTED, Attack, Progress, Reconstruction, check_settings
from ._descent import (
    Cost,
    Descent,
    Minimum,
    Watch,
    consensus,
    message_of,
    minimise,
    noise_start,
    sent_row,
)
from ._matching import cosine_distance
from ._observation import Observation, check_observation
from ._priors import BatchNormDistance, total_variation
from ._targets import labels_of


@dataclass(frozen=True)
class GradInversion(Attack):
    """Gradient matching with fidelity terms, over several seeds that are drawn to their consensus.

    Labels first (`recover_labels`); then each seed s descends on

        D(g(x_s), sent) + α_tv TV(x_s) + α_l2 mean(x_s²) + α_bn R_bn(x_s) + α_group mean((x_s - x̄)²)

    with the running statistics of BatchNorm layers (`BatchNormDistance`; without one, no term) and
    x̄ the mean over seeds, renewed every few steps after the images of equal labels were matched
    across seeds. D is the cosine distance, the paper's the Euclidean one. The paper also registers
    (shifts) images before taking the mean; this does not. The best of all seeds and of x̄, by the
    cost without the group term, is returned.

    Reference: Yin et al., "See through Gradients: Image Batch Recovery via GradInversion", CVPR
    2021.

    Args:
        steps: First-order steps.
        lr: The first step's size; × 0.1 after 3/8, 5/8 and 7/8 of the steps.
        seeds: How many descend beside each other.
        total_variation: α_tv.
        l2: α_l2.
        batch_norm: α_bn.
        group: α_group, from a quarter of the steps on.
        rounds: How often the consensus is renewed.
        time_budget: Seconds after which the best so far is returned; `None`: no limit.
        progress: Called with (step, steps, cost).

    >>> GradInversion(steps=5, seeds=2)(seen, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([1, 3])
    """

    steps: int = 1000
    lr: float = 0.2
    seeds: int = 4
    _: KW_ONLY
    total_variation: float = 1e-2
    l2: float = 1e-6
    batch_norm: float = 1.0
    group: float = 1e-2
    rounds: int = 16
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        weights = ("total_variation", "l2", "batch_norm", "group")
        counts = ("seeds", "rounds", "steps")
        check_settings(self, counts=counts, positive=("lr",), not_negative=weights)

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; all randomness comes from the generator."""
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        labels, sent = labels_of(observation, generator), sent_row(observation)
        cost = self._cost(observation, labels, sent)
        now = noise_start(observation, self.seeds, generator)
        history: list[tuple[int, float]] = []
        for number in range(self.rounds):
            minimum = self._round(cost, now, labels, observation, number, watch)
            steps = number * self._steps_of_round
            history += [(steps + step, float(costs.min())) for step, costs in minimum.history]
            now = minimum.inputs
            if minimum.status != FINISHED:
                break
        return self._picked(cost, minimum, labels, history)

    def _round(
        self,
        cost: Cost,
        now: Tensor,
        labels: Tensor,
        observation: Observation,
        number: int,
        watch: Watch,
    ) -> Minimum:
        drawn = self.group if 4 * number >= self.rounds else 0.0
        mean = consensus(now, labels)
        return minimise(
            cost,
            now,
            self._descent(number, watch.left()),
            data=(mean, torch.full_like(mean.flatten(1)[:, 0], drawn)),
            low=observation.low,
            high=observation.high,
            progress=self._progress_of(number),
        )

    def _progress_of(self, number: int) -> Progress | None:
        """The whole attack's progress, seen from one round."""
        told, before = self.progress, number * self._steps_of_round
        if told is None:
            return None
        total = self.rounds * self._steps_of_round
        return lambda step, _, cost: told(before + step, total, cost)

    @property
    def _steps_of_round(self) -> int:
        return max(1, round(self.steps / self.rounds))

    def _descent(self, number: int, time_budget: float | None) -> Descent:
        rate = Descent(steps=self.steps, lr=self.lr).rate(number / self.rounds)
        return Descent(self._steps_of_round, rate, decay="none", time_budget=time_budget)

    def _cost(self, observation: Observation, labels: Tensor, sent: Tensor) -> Cost:
        message, statistics = message_of(observation), BatchNormDistance(observation)

        def cost(
            inputs: Tensor, progress: float, mean: Tensor, group: Tensor
        ) -> tuple[Tensor, Tensor]:
            own = cosine_distance(message(inputs, labels), sent)
            own = own + self.total_variation * total_variation(inputs)
            own = own + self.l2 * inputs.square().mean()
            if statistics and self.batch_norm > 0:
                own = own + self.batch_norm * statistics(inputs)
            return own + group * (inputs - mean).square().mean(), own

        return cost

    def _picked(
        self, cost: Cost, minimum: Minimum, labels: Tensor, history: list[tuple[int, float]]
    ) -> Reconstruction:
        """The best of the seeds and their consensus, by the cost without the group term."""
        best = int(minimum.costs.argmin())
        inputs, own = minimum.inputs[best], float(minimum.costs[best])
        if minimum.status != INTERRUPTED:
            mean = consensus(minimum.inputs, labels)[best]
            with torch.no_grad():
                shared = float(cost(mean, 1.0, mean, torch.zeros_like(minimum.costs[0]))[1])
            if shared < own:
                inputs, own = mean, shared
        return Reconstruction(inputs, labels, own, history, minimum.status)
