"""An attack at work, and the targets that it was not told."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh, normal_like
from gradveil._tensors import relative_misfit

from ._attack import Progress, Reconstruction, Search
from ._descent import Cost, Descent, Minimum, Watch, clamp, message_of, minimise, sent_row
from ._dlg import DLG
from ._labels import recover_labels
from ._matching import cosine_distance
from ._model_layers import random_inputs
from ._observation import Observation, check_observation


@dataclass(frozen=True)
class Run:
    """One attack at work: what it attacks, the targets it goes on with, its draws and its time."""

    observation: Observation
    labels: Tensor
    generator: torch.Generator
    watch: Watch
    progress: Progress | None = None

    @property
    def sent(self) -> Tensor:
        """What was sent, in one row."""
        return sent_row(self.observation)

    @property
    def distance(self) -> Callable[[Tensor], Tensor]:
        """From inputs to the cosine distance of their message from what was sent."""
        message, sent = self.observation.message(self.labels), self.sent
        return lambda inputs: cosine_distance(tuple(message(inputs).values()), sent)

    @property
    def message(self) -> Callable[[Tensor], Tensor]:
        """From inputs to the message in one row."""
        return message_of(self.observation, self.labels)

    def noise(self, count: int) -> Tensor:
        """So many batches from N(0, I), in the dtype and on the device of what was sent."""
        seen, like = self.observation, next(iter(self.observation.sent.values()))
        blank = like.new_empty(count, seen.batch_size, *seen.input_shape)
        return normal_like(blank, self.generator)

    def blank(self, status: str) -> Reconstruction:
        """Noise, for where an attack ended before it found anything."""
        inputs = self.clamp(self.noise(1)[0])
        return Reconstruction(inputs, self.labels, self.misfit(inputs), status=status)

    def clamp(self, inputs: Tensor) -> Tensor:
        return clamp(inputs, self.observation.low, self.observation.high)

    def minimise(
        self, cost: Cost, start: Tensor, descent: Descent, data: tuple[Tensor, ...] = ()
    ) -> Minimum:
        """Minimise within the range, and tell how far it is."""
        ends = {"low": self.observation.low, "high": self.observation.high}
        return minimise(cost, start, descent, data=data, progress=self.progress, **ends)

    def misfit(self, inputs: Tensor) -> float:
        """Of the message, relative to its size."""
        return message_misfit(self.observation, inputs, self.labels)

    def random_misfit(self) -> float:
        """The least misfit that one of eight random batches has."""
        count = len(self.labels)
        drawn = random_inputs(self.observation, 8 * count, self.generator).split(count)
        return min(self.misfit(inputs) for inputs in drawn)


@dataclass(frozen=True)
class LabelledSearch(Search):
    """A search that goes on with one set of targets, granted or found first."""

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        labels = labels_of(observation, generator)
        return self.search(Run(observation, labels, generator, watch, self.progress))

    @abstractmethod
    def search(self, run: Run) -> Reconstruction:
        """The attack on the observation of a run; one that it cannot work on is an error."""


def message_misfit(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """‖g(inputs) - sent‖² / ‖sent‖²."""
    with torch.no_grad():
        message = message_of(observation, labels)(inputs)
        return float(relative_misfit(message, sent_row(observation)))


def labels_of(observation: Observation, generator: torch.Generator) -> Tensor:
    """The targets that the threat model grants, or those that the message gives away.

    Class labels are read off the last layer. Other targets are looked for together with the inputs
    (`DLG`); the attack then goes on with them as if they were known.
    """
    if observation.labels is None and observation.task != "classification":
        return DLG(steps=100, restarts=2)(observation, generator).targets
    labels = recover_labels(observation, generator)
    return labels.to(next(iter(observation.sent.values())).device)
