"""Regression: inputs from a message as simulated messages of random inputs teach it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_count, check_not_negative
from gradveil._random import generator_or_fresh
from gradveil._tensors import relative_misfit

from .._attack import Attack, Progress
from .._observation import Observation
from .._reconstruction import FINISHED, TIME_BUDGET, Reconstruction
from .._search import Watch, check_alike, clamp, labels_of, message_of, sent_row
from ._simulation import Simulation


@dataclass(frozen=True)
class Regress(Attack):
    """The inputs as a linear function of the message, fitted to messages of random inputs.

    The attacker knows the model and can make messages itself. It draws random images with the
    spectrum of photographs (no data set; other inputs: normal numbers), computes the message of
    each batch with the labels of the one that was sent, and fits

        E[x | y] ≈ mean of x + Σ_n k(y, y_n) α_n

    by ridge regression, k being the product of messages, tensor by tensor, weighted by how well
    each tensor alone predicts samples that are left out. What the message does not tell stays at
    the mean, so the estimate is a smooth one and seldom worse than a blind guess. It follows no
    derivative: the kinks and max-pools that lead a descent astray do not matter. It is a good start
    for a descent, and where a descent explains nothing, better than its end.

    Args:
        samples: How many messages are simulated, each at the price of one gradient.
        time_budget: Seconds after which it makes do with the samples that it has.
        progress: Called with (sample, samples, 1.0).

    >>> from gradveil.attacks import InvertingGradients
    >>> InvertingGradients(regress=Regress(samples=100)).regress.samples
    100
    """

    samples: int = 300
    time_budget: float | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_count(self.samples, "samples")
        if self.time_budget is not None:
            check_not_negative(self.time_budget, "time_budget")

    @property
    def work(self) -> float:
        """A gradient of the message without its derivative is a third of a step."""
        return self.samples / 3

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack one observation; the middle of the range where the samples teach nothing."""
        check_alike([observation])
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        labels = labels_of(observation, generator)
        simulated = Simulation.of(
            observation, labels, self.samples, generator, watch, self.progress
        )
        inputs = clamp(simulated.estimate(observation)[0], observation.low, observation.high)
        with torch.no_grad():
            message = message_of(observation)(inputs, labels)
        own = float(relative_misfit(message, sent_row(observation)))
        status = TIME_BUDGET if len(simulated.inputs) < self.samples else FINISHED
        return Reconstruction(inputs, labels, own, [(len(simulated.inputs), own)], status)

    def estimates(
        self,
        observations: Sequence[Observation],
        labels: Sequence[Tensor],
        generator: torch.Generator,
        watch: Watch,
    ) -> list[Tensor]:
        """Of several observations of one model.

        Where the samples teach nothing this is their mean, which is still a better start than
        noise: of BatchNorm in training mode noise in the start is noise in the end. Observations
        with the same labels and the same message share their samples.
        """
        made: list[tuple[Observation, Tensor, Simulation]] = []
        found: list[Tensor] = []
        for observation, own in zip(observations, labels, strict=True):
            simulated = next((s for o, t, s in made if _same(o, t, observation, own)), None)
            if simulated is None:
                simulated = Simulation.of(observation, own, self.samples, generator, watch, None)
                made.append((observation, own, simulated))
            inputs = simulated.estimate(observation)[0]
            found.append(clamp(inputs, observation.low, observation.high))
        return found


def _same(one: Observation, labels: Tensor, other: Observation, others: Tensor) -> bool:
    return torch.equal(labels, others) and one.defense is other.defense
