"""Deep Leakage from Gradients, and its improvement: labels first."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import relative_misfit

from ._attack import FINISHED, Reconstruction, Search
from ._descent import Watch, clamp, minimise_lbfgs
from ._labels import recover_labels
from ._observation import Observation, check_observation
from ._targets import SoftTargets, soft_targets


@dataclass(frozen=True)
class DLG(Search):
    """Match the message in inputs and soft labels together, by L-BFGS.

    Minimises ‖g(x, softmax(z)) - sent‖² / ‖sent‖² over x and z. It uses no label knowledge, not
    even what the threat model grants, and needs a loss that takes class probabilities, as
    `torch.nn.functional.cross_entropy` does. Targets that are numbers are optimised themselves.
    Made for smooth models and few images: with ReLU or large batches it rarely converges. Starts
    are from N(0, 0.1² I): the paper's N(0, I) converges several times more slowly on its own
    network.

    Reference: Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019.

    Args:
        steps: L-BFGS iterations of one start, at most.
        restarts: Starts at most; the next is tried only if none before reached `tolerance`.
        tolerance: The relative cost at which a start counts as converged.

    >>> DLG(steps=50)(seen, torch.Generator().manual_seed(0)).targets
    tensor([1])
    """

    steps: int = 2000
    restarts: int = 3
    tolerance: float = 3e-8

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """The best of all starts by its own cost; all randomness comes from the generator."""
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        targets, like = self._targets(observation, generator), next(iter(observation.sent.values()))
        blank = like.new_zeros(observation.batch_size, *observation.input_shape)

        def cost(row: Tensor) -> Tensor:
            own = targets.relaxed(row[blank.numel() :].view_as(targets.blank))
            message = observation.message(own)(row[: blank.numel()].view_as(blank))
            return relative_misfit(message, observation.sent)

        points = []
        for _ in range(self.restarts):
            drawn = [normal_like(part, generator).flatten() for part in (blank, targets.blank)]
            start = 0.1 * torch.cat(drawn)
            points.append(
                minimise_lbfgs(
                    cost, start, steps=self.steps, watch=watch, tolerance=self.tolerance,
                    progress=self.progress,
                )
            )  # fmt: skip
            if points[-1].cost <= self.tolerance or points[-1].status != FINISHED:
                break
        best = min(points, key=lambda point: point.cost)
        inputs, rest = best.inputs.tensor_split([blank.numel()])
        inputs = clamp(inputs.view_as(blank), observation.low, observation.high)
        labels = targets.settled(rest.view_as(targets.blank))
        return Reconstruction(inputs, labels, best.cost, points[-1].status)

    def _targets(self, observation: Observation, generator: torch.Generator) -> SoftTargets:
        """Variables of the search, as the inputs are."""
        return soft_targets(observation)


@dataclass(frozen=True)
class IDLG(DLG):
    """Labels from the last layer first (`recover_labels`), then matching in the inputs alone.

    Minimises ‖g(x, ŷ) - sent‖² / ‖sent‖² over x by L-BFGS. For one example the label is exact;
    iDLG is stated for one, and batches here use the counts that `recover_labels` finds.

    Reference: Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020.

    >>> IDLG(steps=50)(seen, torch.Generator().manual_seed(0)).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    def _targets(self, observation: Observation, generator: torch.Generator) -> SoftTargets:
        labels = recover_labels(observation, generator)
        return SoftTargets(next(iter(observation.sent.values())).new_zeros(0), None, labels)
