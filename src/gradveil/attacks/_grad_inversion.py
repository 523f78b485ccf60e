"""GradInversion: gradient matching with BatchNorm statistics and a consensus of several seeds."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ._attack import FINISHED, INTERRUPTED, Reconstruction
from ._descent import Cost, Descent, consensus
from ._model_layers import loss_of, recorded
from ._observation import Observation
from ._priors import total_variation
from ._targets import LabelledSearch, Run


@dataclass(frozen=True)
class GradInversion(LabelledSearch):
    """Gradient matching with fidelity terms, over several seeds that are drawn to their consensus.

    Labels first (`recover_labels`); then each seed s descends on

        D(g(x_s), sent) + α_tv TV(x_s) + α_l2 mean(x_s²) + α_bn R_bn(x_s) + α_group mean((x_s - x̄)²)

    with the running statistics of BatchNorm layers (`batch_norm_distance`) and x̄ the mean over
    seeds, renewed every few steps after the images of equal labels were matched. D is the cosine
    distance, the paper's the Euclidean one. The paper also registers (shifts) images before taking
    the mean; this does not. The best of all seeds and of x̄, by the cost without the group term, is
    returned.

    Reference: Yin et al., "See through Gradients: Image Batch Recovery via GradInversion", CVPR
    2021.

    Args:
        lr: The first step's size; × 0.1 after 3/8, 5/8 and 7/8 of the steps.
        group: α_group, from a quarter of the steps on.
        rounds: How often the consensus is renewed.

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

    def search(self, run: Run) -> Reconstruction:
        cost, now = self._cost(run), run.noise(self.seeds)
        whole, steps = Descent(self.steps, self.lr), max(1, round(self.steps / self.rounds))
        for number in range(self.rounds):
            rate, mean = whole.rate(number / self.rounds), consensus(now, run.labels)
            drawn = torch.full_like(now.flatten(1)[:, 0], self.group * (4 * number >= self.rounds))

            def tell(step: int, _: int, own: float, before: int = number * steps) -> None:
                if self.progress is not None:
                    self.progress(before + step, self.rounds * steps, own)

            descent = Descent(steps, rate, decay="none", time_budget=run.watch.left())
            minimum = replace(run, progress=tell).minimise(cost, now, descent, (mean, drawn))
            now = minimum.inputs
            if minimum.status != FINISHED:
                break
        best = minimum.best
        if best.status != INTERRUPTED:
            mean = consensus(now, run.labels)[minimum.costs.argmin()]
            with torch.no_grad():
                shared = float(cost(mean, 1.0, mean, torch.zeros_like(minimum.costs[0]))[1])
            if shared < best.cost:
                best = replace(best, inputs=mean, cost=shared)
        return Reconstruction(best.inputs, run.labels, best.cost, best.status)

    def _cost(self, run: Run) -> Cost:
        """(all terms, those without the group's) of one seed."""
        distance, tv = run.distance, self.total_variation
        statistics = batch_norm_distance(run.observation) if self.batch_norm > 0 else None

        def cost(
            inputs: Tensor, progress: float, mean: Tensor, group: Tensor
        ) -> tuple[Tensor, Tensor]:
            own = distance(inputs) + tv * total_variation(inputs)
            own = own + self.l2 * inputs.square().mean()
            if statistics is not None:
                own = own + self.batch_norm * statistics(inputs)
            return own + group * (inputs - mean).square().mean(), own

        return cost


def batch_norm_distance(observation: Observation) -> Callable[[Tensor], Tensor] | None:
    """How far the statistics of a batch are from the running ones, over all BatchNorm layers.

    R(x) = mean over layers l and channels of ((μ_l(x) - μ̂_l) / σ̂_l)² + (σ_l(x) / σ̂_l - 1)²,

    with μ_l(x), σ_l(x) the mean and standard deviation of the layer's input over examples and
    positions, and μ̂_l, σ̂_l what the model carries. `None` for models without running statistics.
    Eq. 7 of the paper has norms that are not relative to σ̂.
    """
    loss, modules = loss_of(observation), observation.model.modules()
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    layers = [("", norm) for norm in norms if norm.running_mean is not None]

    def distance(inputs: Tensor) -> Tensor:
        with recorded(layers) as calls:
            loss.outputs(loss.parameters, inputs)
        found = []
        for _, layer, values in calls:
            over = [0, *range(2, values.dim())]
            spread = (layer.running_var.detach() + layer.eps).sqrt()
            mean, variance = values.mean(over), values.var(over, unbiased=False)
            shift = (mean - layer.running_mean.detach()) / spread
            ratio = (variance + layer.eps).sqrt() / spread
            found.append((shift.square() + (ratio - 1).square()).mean())
        return torch.stack(found).mean()

    return distance if layers else None
