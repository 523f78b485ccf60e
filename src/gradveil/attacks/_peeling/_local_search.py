"""The head's unknowns along FedAvg's local steps: from what is expected to what was sent."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .._search import Watch
from ._least_squares import least_squares
from ._local_head import LocalHead
from ._trajectories import Expected, Training, simulate

SOLVED = 1e-9
"""The squared residual of the head's equations that counts as 0."""
ALMOST = 1e-2
"""That of inputs from whose own training the model's own equations are tried at once."""
BATCHES = 48
"""Random batches whose training is simulated."""
AROUND = 0.3
"""The share of random inputs that is added to a guess, to see what is expected around it."""
START = 0.3
"""How far from what is expected a search starts, in standard deviations."""


@dataclass(frozen=True)
class Annealing:
    """How widths of the smooth twin and the weight of what is expected fall together."""

    width: float
    """The first, over the size of the head's outputs."""
    fall: float
    widths: int
    weight: float
    """The first, of squares."""
    ridge: float
    """As in `Expected`."""


BLIND = Annealing(2.0, 0.7, 12, 0.1, 0.1)
"""Without a guess of the inputs."""
NEARBY = Annealing(0.13, 0.5, 5, 0.01, 0.02)
"""From one."""


@dataclass(frozen=True)
class LocalSearch:
    """Solves the equations of a `LocalHead`."""

    training: Training
    local: LocalHead
    generator: torch.Generator
    watch: Watch

    def from_nothing(self) -> tuple[Tensor, float]:
        """The coordinates of all visits, and the squared residual that is left."""
        expected = self._expected(None, BLIND.ridge)
        self.local.head.twin.set_width(BLIND.width * self._scale)
        self.local.measure(expected.mean)
        row = self.local.start(expected.draw(START, self.generator))
        return self._end(self._anneal(row, expected, BLIND))

    def from_inputs(self, inputs: Tensor) -> tuple[Tensor, float]:
        """The same, from the features that these inputs have in their own training."""
        expected = self._expected(inputs, NEARBY.ridge)
        self.local.head.twin.set_width(1e-9)
        row = self.local.start(self.training.features(inputs) @ self.local.basis.T)
        self.local.head.sharpen()
        if float(self.local.residuals(row).square().sum()) < ALMOST:
            found = self._end(row)
            if found[1] < SOLVED:
                return found
        return self._end(self._anneal(row, expected, NEARBY))

    @property
    def _scale(self) -> float:
        return float(self.local.head.outputs.square().mean().sqrt())

    def _expected(self, inputs: Tensor | None, ridge: float) -> Expected:
        around = None if inputs is None else (inputs, AROUND)
        drawn = simulate(
            self.training, self.local.basis, around, BATCHES, self.generator, self.watch
        )
        return Expected(drawn, self.local.visits, ridge)

    def _anneal(self, row: Tensor, expected: Expected, annealing: Annealing) -> Tensor:
        for number in range(annealing.widths):
            fall = annealing.fall**number
            self.local.head.twin.set_width(annealing.width * self._scale * fall)
            weight = (annealing.weight * fall**1.5) ** 0.5

            def residuals(row: Tensor, weight: float = weight) -> Tensor:
                beside = weight * expected.residuals(self.local.places(row))
                return torch.cat([self.local.residuals(row), beside])

            row = least_squares(residuals, row, steps=4, watch=self.watch)[0]
        return row

    def _end(self, row: Tensor) -> tuple[Tensor, float]:
        """The model's own equations, with nothing beside them; longer where they nearly hold."""
        self.local.head.sharpen()
        cost = float("inf")
        for _ in range(3):
            row, cost = least_squares(
                self.local.residuals, row, steps=20, watch=self.watch, good=1e-3 * SOLVED
            )
            if not SOLVED < cost < ALMOST / 10:
                break
        return self.local.places(row), cost
