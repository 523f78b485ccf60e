"""Images from what a message says of one stage, the positions of its pool being open."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._attack import Progress
from .._evidence import TotalVariation
from .._observation import Observation
from .._search import Cost, Descent, Minimum, Watch, minimise
from ._chain import Stage
from ._equations import Equations
from ._features import Cooling, units


@dataclass(frozen=True)
class ImageSearch:
    """Minimises the expected misfit of a stage's equations over images x, a = lower stages of x.

    The positions' probabilities are estimated again at every step (`Equations.estimate`), the
    allowed errors fall on the way, and total variation keeps what is not determined smooth.

    Args:
        observation: With the range of the images.
        lower: The stages before the one of the equations.
        equations: Of the first stage with a pool.
        cooling: How the errors fall, over its steps.
        energy: Of images.
    """

    observation: Observation
    lower: Sequence[Stage]
    equations: Equations
    cooling: Cooling
    energy: TotalVariation

    def __call__(
        self, start: Tensor, deviation: Tensor, watch: Watch, progress: Progress | None
    ) -> Minimum:
        """From a start; the deviation is that of the stage's inputs."""
        rate = 0.4 * self._width()
        descent = Descent(
            self.cooling.steps, rate, "adam", "cosine", time_budget=watch.left(), settled=1.0
        )
        low, high = self.observation.low, self.observation.high
        cost = self._cost(units(self.equations, deviation))
        return minimise(cost, start[None], descent, low=low, high=high, progress=progress)

    def _cost(self, unit: tuple[Tensor, Tensor]) -> Cost:
        shares: list[Tensor] = []

        def cost(inputs: Tensor, progress: float) -> Tensor:
            noise, blur = self.cooling.at_share(progress)
            features = through(self.lower, inputs)
            with torch.no_grad():
                now = shares[-1] if shares else _soft(self.equations, features, unit[1])
                now = self.equations.estimate(features, now, unit[0] * noise, unit[1] * blur)
            shares[:] = [now]
            misfit = self._misfit(features, now, unit[0] * noise, unit[1] * blur)
            return misfit + self.energy(inputs)

        return cost

    def _misfit(self, features: Tensor, shares: Tensor, noise: Tensor, blur: Tensor) -> Tensor:
        """The expected -log-likelihood of the gradient and of the outputs."""
        equations = self.equations
        patches, gaps = equations.patches(features), equations.gaps(features) / blur
        residual = equations.gradient - equations.delta(shares) @ patches.T
        of_cells, sizes = patches.T[equations.cells], equations.weights[:, :, None]
        products = of_cells @ of_cells.transpose(1, 2)
        diagonal = products.diagonal(dim1=1, dim2=2)
        expected = sizes * shares
        spread = ((sizes.square() * shares).sum(0) * diagonal).sum()
        spread = spread - torch.einsum("oki,kij,okj->", expected, products, expected)
        values = 0.5 * shares * gaps.square() - (1 - shares) * torch.special.log_ndtr(gaps)
        values = (values * equations.seen[:, :, None]).sum()
        total: Tensor = 0.5 * (residual.square().sum() + spread) / noise**2 + values
        return total

    def _width(self) -> float:
        """A quarter of the range, about one standard deviation."""
        low, high = self.observation.low, self.observation.high
        return 1.0 if low is None or high is None else float((high - low).mean()) / 4


def through(stages: Sequence[Stage], inputs: Tensor) -> Tensor:
    """What the stages make of the inputs."""
    for stage in stages:
        inputs = stage(inputs)
    return inputs


def _soft(equations: Equations, features: Tensor, blur: Tensor) -> Tensor:
    return torch.softmax(-equations.gaps(features) / blur, -1)
