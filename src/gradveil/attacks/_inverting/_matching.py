"""The matching cost: how far a candidate's message is from what was sent, and how rough it is."""

import math

import torch
from torch import Tensor

from .._evidence import DISTANCES, random_examples, total_variation
from .._observation import Observation
from .._search import SETTLED, Cost, SmoothTwin, parts_of, sent_row

RANDOM = 8
"""How many batches of random inputs say what a misfit is worth."""


def matching_cost(
    observation: Observation, distance: str, weights: tuple[float, float], smoothing: float
) -> Cost:
    """(inputs, progress, labels, sent, unit) to D(g(x), y) + unit · weight · TV(x).

    Args:
        observation: One of those that are attacked beside each other.
        distance: D, "cosine" or "euclidean".
        weights: Of total variation at the start and at the end.
        smoothing: The width of the smooth twin's activations at the start; 0: no twin.
    """
    measure = DISTANCES[distance]
    twin = SmoothTwin(observation, smoothing) if smoothing > 0 else None
    message = parts_of(twin.observation if twin else observation)

    def cost(
        inputs: Tensor, progress: float, labels: Tensor, sent: Tensor, unit: Tensor | float = 1.0
    ) -> Tensor:
        done = min(1.0, progress / SETTLED)
        if twin:
            twin.set_width(smoothing * 0.01**done)
        roughness = unit * _between(*weights, done) * total_variation(inputs)
        return measure(message(inputs, labels), sent) + roughness

    return cost


def misfit_unit(
    observation: Observation, labels: Tensor, distance: str, generator: torch.Generator
) -> Tensor:
    """The root of the median distance of random inputs' messages from what was sent, at most 1.

    A model whose message is nearly the same for all inputs has small distances everywhere; total
    variation weighs less there. It does not weigh as much less as the distance is smaller: such a
    distance has little slope, too, and the images need a prior the more.
    """
    drawn = random_examples(observation, RANDOM * len(labels), generator).split(len(labels))
    message, sent = parts_of(observation), sent_row(observation)
    with torch.no_grad():
        found = [DISTANCES[distance](message(inputs, labels), sent) for inputs in drawn]
    return torch.stack(found).median().clamp(0.0, 1.0).sqrt()


def _between(start: float, end: float, share: float) -> float:
    """From start to end, geometrically where both are above 0."""
    if start > 0 and end > 0:
        return start * math.exp(share * math.log(end / start))
    return start + share * (end - start)
