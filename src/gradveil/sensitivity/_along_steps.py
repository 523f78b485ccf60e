"""Sensitivities of a FedAvg update from those of the gradients it is made of."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import LocalUpdateMessage, Message

from ._estimator import Measurement

Measure = Callable[[Message, Tensor, torch.Generator], Measurement]


@dataclass(frozen=True)
class AlongSteps:
    """s² of Θ_T - Θ_0 = -lr Σ_t c_t g_t, from the first gradient of each mini-batch.

    c_t = 1 + μ + … + μ^(T-1-t) with momentum μ. Later visits to a mini-batch see nearly the same
    gradient, so its coefficients add before squaring; how the path Θ_t itself depends on the inputs
    is left out. Both are exact for one step, and of higher order in lr.

    Args:
        measure: The estimator for the gradient of one mini-batch.
    """

    measure: Measure

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure a local update at these inputs."""
        assert isinstance(message, LocalUpdateMessage)
        batches = message.batches(inputs)
        weights = _weights(message, len(batches))
        now, start = message.parameters, message.parameters
        velocity = {name: torch.zeros_like(p) for name, p in start.items()}
        squares = {name: torch.zeros_like(p) for name, p in start.items()}
        for step in range(message.steps):
            batch, targets = batches[step % len(batches)]
            gradient = message.gradient_at(now, targets)
            if step < len(batches):
                measured = self.measure(gradient, batch, generator)
                values = measured.values
                _add(squares, measured.squared_sensitivities, weights[step])
            else:
                values = gradient(batch)
            now, velocity = message.advance(now, velocity, values)
        return Measurement({n: now[n] - start[n] for n in start}, squares, None)


def _weights(message: LocalUpdateMessage, batches: int) -> list[float]:
    """(lr Σ c_t)² over the visits of each mini-batch."""
    sums = [0.0] * batches
    for step in range(message.steps):
        later = message.steps - step
        sums[step % batches] += message.lr * sum(message.momentum**k for k in range(later))
    return [total**2 for total in sums]


def _add(squares: Tensors, found: Tensors, weight: float) -> None:
    for name, square in found.items():
        squares[name] += weight * square
