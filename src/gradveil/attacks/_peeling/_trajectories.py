"""What features do along FedAvg's local steps, and what is expected of them."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradveil._random import normal_like
from gradveil._typing import Tensors
from gradveil.messages import LocalUpdateMessage

from .._evidence import random_examples
from .._observation import Observation
from .._search import Watch, clamp, features_of
from ._visits import Visits

FEWEST = 8
"""So many batches are drawn in any case."""


@dataclass(frozen=True)
class Training:
    """The local steps of an observed client, played with inputs of the attacker's."""

    observation: Observation
    labels: Tensor
    visits: Visits
    layer: str
    """The one whose inputs are the features."""

    def features(self, inputs: Tensor) -> Tensor:
        """Of all visits in double precision; shape (visits, features)."""
        found = []
        for examples, parameters in self.walk(inputs):
            features = features_of(self.layer, self.observation, parameters)
            with torch.no_grad():
                found.append(features(inputs[examples]))
        return torch.cat(found).double()

    def walk(self, inputs: Tensor) -> Iterator[tuple[Tensor, Tensors]]:
        """Each step's examples and the parameters that it starts from.

        `inputs` may be filled in on the way: a step reads its own when the next one is asked for.
        """
        message, now = self._message(), self._message().parameters
        moving = {name: torch.zeros_like(value) for name, value in now.items()}
        for examples in self.visits.steps:
            now = {name: value.detach() for name, value in now.items()}
            yield examples, now
            gradient = message.gradient_at(now, self.labels[examples])(inputs[examples])
            now, moving = message.advance(now, moving, gradient)

    def at(self, parameters: Tensors, examples: int) -> Observation:
        """The observation with the model's parameters of a step, of so many examples."""
        model = copy.deepcopy(self.observation.model)
        with torch.no_grad():
            for name, own in model.named_parameters():
                own.copy_(parameters.get(name, own))
        return replace(
            self.observation, model=model, batch_size=examples, labels=None, label_counts=None
        )

    def _message(self) -> LocalUpdateMessage:
        local = self.observation.local
        assert local is not None
        return local.message(self.observation.model, self.observation.loss_fn, self.labels)


def simulate(
    training: Training,
    basis: Tensor,
    around: tuple[Tensor, float] | None,
    count: int,
    generator: torch.Generator,
    watch: Watch,
) -> Tensor:
    """Coordinates of random batches' features in the basis; shape (batches, visits, rank).

    `around`: inputs, and the share of random ones that is added to them.
    """
    seen, found = training.observation, []
    for number in range(count):
        if number >= FEWEST and watch.is_over():
            break
        inputs = random_examples(seen, len(training.labels), generator)
        if around is not None:
            centre = inputs.mean() if seen.low is None else (seen.low + seen.high) / 2  # type: ignore[operator]
            inputs = clamp(around[0] + around[1] * (inputs - centre), seen.low, seen.high)
        found.append(training.features(inputs) @ basis.T)
    return torch.stack(found)


class Expected:
    """A normal distribution of the coordinates of each example's visits, fitted to simulated ones.

    Examples that are visited by the same steps share their covariance, which is widened by the
    share `ridge` of its mean variance in all directions.
    """

    def __init__(self, simulated: Tensor, visits: Visits, ridge: float) -> None:
        self.mean = simulated.mean(0)
        centred = simulated - self.mean
        self._groups: list[tuple[list[Tensor], Tensor]] = []
        for group in visits.alike():
            rows = torch.cat([centred[:, own].flatten(1) for own in group])
            covariance = rows.T @ rows / len(rows)
            covariance.diagonal().add_(ridge * covariance.diagonal().mean())
            self._groups.append((group, torch.linalg.cholesky(covariance)))

    def residuals(self, places: Tensor) -> Tensor:
        """Of coordinates, with a mean square of 1 where they are as expected; one row."""
        shifted, parts = places - self.mean, []
        for group, factor in self._groups:
            rows = torch.stack([shifted[own].flatten() for own in group], dim=1)
            parts.append(torch.linalg.solve_triangular(factor, rows, upper=False).flatten())
        row: Tensor = torch.cat(parts) / places.numel() ** 0.5
        return row

    def draw(self, share: float, generator: torch.Generator) -> Tensor:
        """The mean and a share of a deviation from it."""
        drawn = self.mean.clone()
        for group, factor in self._groups:
            noise = factor @ normal_like(factor.new_empty(len(factor), len(group)), generator)
            for own, deviation in zip(group, noise.T, strict=True):
                drawn[own] += share * deviation.view(len(own), -1)
        return drawn
