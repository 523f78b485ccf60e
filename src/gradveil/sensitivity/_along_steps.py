"""Sensitivities of a FedAvg update from those of the gradients it is made of."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import LocalUpdateMessage, Message

from ._estimator import Measurement, draw_probes, estimator_name, one_name
from ._shrinkage import smooth_matrix
from ._sketch import directional_derivatives

Measure = Callable[[Message, Tensor, torch.Generator], Measurement]


@dataclass(frozen=True)
class AlongSteps:
    """s² of Θ_T - Θ_0 = -lr Σ_t c_t g_t, from the first gradient of each mini-batch.

    c_t = 1 + μ + … + μ^(T-1-t) with momentum μ. Later visits to a mini-batch see nearly the same
    gradient, so its coefficients add before squaring; how the path Θ_t itself depends on the inputs
    is left out. Both are exact for one step, and of higher order in lr. Probes of the whole update,
    where there are any, know everything: rows, columns and entries move from the first estimate
    towards their squares as far as these prove it (`smooth_matrix`).

    Args:
        measure: The estimator for the gradient of one mini-batch.
        probes: Random directions for the whole update. Each costs about four plain updates; on the
            MNIST CNN with five steps at 0.01 one lifts the share of the optimum from 0.64 to 0.91.
    """

    measure: Measure
    probes: int = 0

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure a local update at these inputs."""
        assert isinstance(message, LocalUpdateMessage)
        batches = message.batches(inputs)
        weights = _weights(message, len(batches))
        now, start = message.parameters, message.parameters
        velocity = {name: torch.zeros_like(p) for name, p in start.items()}
        squares = {name: torch.zeros_like(p) for name, p in start.items()}
        names = []
        for step in range(message.steps):
            batch, targets = batches[step % len(batches)]
            gradient = message.gradient_at(now, targets)
            if step < len(batches):
                measured = self.measure(gradient, batch, generator)
                values = measured.values
                names.append(measured.estimator or estimator_name(self.measure))
                _add(squares, measured.squared_sensitivities, weights[step])
            else:
                values = gradient.values(batch)
            now, velocity = message.advance(now, velocity, values)
        if self.probes > 0:
            squares = self._corrected(squares, message, inputs, generator)
        update = {n: now[n] - start[n] for n in start}
        return Measurement(update, squares, None).by(self._name(one_name(names)))

    def _name(self, inner: str) -> str:
        return f"along-steps({inner}{f', probes={self.probes}' if self.probes else ''})"

    def _corrected(
        self, squares: Tensors, message: Message, inputs: Tensor, generator: torch.Generator
    ) -> Tensors:
        directions = draw_probes(inputs, self.probes, "gaussian", generator)
        tangents = directional_derivatives(message, inputs, directions)
        return {
            name: smooth_matrix(tangents[name].square().mean(0), self.probes, square)
            for name, square in squares.items()
        }


def _weights(message: LocalUpdateMessage, batches: int) -> list[float]:
    """(lr Σ c_t)² over the visits of each mini-batch."""
    sums = [0.0] * batches
    for step in range(message.steps):
        later = message.steps - step
        sums[step % batches] += message.lr * sum(message.momentum**k for k in range(later))
    return [total**2 for total in sums]


def _add(squares: Tensors, gradient_squares: Tensors, weight: float) -> None:
    for name, square in gradient_squares.items():
        squares[name] += weight * square
