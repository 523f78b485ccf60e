"""Targets that the attacker was not told: read off the message, or looked for with the inputs."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradveil._checks import WrongValue, first_line
from gradveil._random import generator_or_fresh, named_stream, normal_like
from gradveil._tensors import relative_misfit
from gradveil.messages import FunctionalLoss

from ._attack import Progress, Reconstruction, Search
from ._descent import (
    Cost,
    Descent,
    Minimum,
    Watch,
    clamp,
    message_of,
    minimise,
    noise_start,
    parts_of,
    sent_row,
)
from ._labels import recover_labels
from ._model_layers import random_inputs
from ._observation import Observation, check_observation

GRANT = "Grant the targets: `ThreatModel(labels='known')`."


@dataclass(frozen=True)
class SoftTargets:
    """The variables that a search moves in place of the targets, as DLG does for class labels.

    Numbers are moved themselves. Labels are the softmax of logits along `classes`, which a loss
    such as cross-entropy takes as the probabilities of classes.
    """

    blank: Tensor
    """Zeros in the shape of the variables."""
    classes: int | None
    """The dimension of the classes; `None`: numbers."""
    known: Tensor | None = None
    """The targets themselves, where there is nothing to be moved."""

    def relaxed(self, variables: Tensor) -> Tensor:
        """What the loss is given on the way."""
        if self.known is not None:
            return self.known
        return variables if self.classes is None else variables.softmax(self.classes)

    def settled(self, variables: Tensor) -> Tensor:
        """The targets at the end: numbers, or the likeliest classes."""
        if self.known is not None:
            return self.known
        return variables if self.classes is None else variables.argmax(self.classes)


def soft_targets(observation: Observation) -> SoftTargets:
    """Variables for the targets of an observation; an error where the message hides them.

    That is where the loss takes no probabilities in place of labels, or where the gradient does not
    change with the targets but by jumps (an absolute error).
    """
    generator = named_stream("targets")  # the attack's own draws stay the same
    like = next(iter(observation.sent.values()))
    shape = (observation.batch_size, *observation.target_shape)
    soft = SoftTargets(like.new_zeros(shape), None)
    if observation.task != "numbers":
        soft = _distributions(observation, shape, generator)
    inputs = random_inputs(observation, observation.batch_size, generator)
    variables = normal_like(soft.blank, generator).requires_grad_()
    slope, found = soft.blank, "that its derivative is 0"
    with torch.enable_grad():
        try:
            values = message_of(observation)(inputs, soft.relaxed(variables))
            (slope,) = torch.autograd.grad(
                values.square().sum(), variables, allow_unused=True, materialize_grads=True
            )
        except RuntimeError as failed:
            found = f"`{first_line(failed)}`"
    if not bool(slope.any()):
        expected = (
            "have a gradient that follows the targets where these are not known, because they are"
            " looked for"
        )
        raise WrongValue("observation.loss_fn", expected, found, GRANT)
    return soft


def _distributions(
    observation: Observation, shape: tuple[int, ...], generator: torch.Generator
) -> SoftTargets:
    """Probabilities in a layout in which the loss takes them: classes second, or last."""
    loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)
    with torch.no_grad():
        inputs = random_inputs(observation, observation.batch_size, generator)
        outputs: Any = loss.outputs(loss.parameters, inputs)
    size = outputs.numel() if isinstance(outputs, Tensor) else 0
    classes, rest = divmod(size, prod(shape))
    error = "" if classes and not rest else "outputs that are not one score for each class"
    for place in (1, -1) if not error else ():
        hard = torch.arange(prod(shape), device=outputs.device).reshape(shape) % classes
        soft = one_hot(hard, classes).movedim(-1, place).to(outputs)
        try:
            told, found = (loss.loss_of_outputs(outputs, targets) for targets in (hard, soft))
        except (RuntimeError, TypeError, ValueError, IndexError) as failed:
            error = f"`{first_line(failed)}`"
            continue
        if torch.allclose(told, found, rtol=1e-4, atol=1e-6):
            return SoftTargets(torch.zeros_like(soft), place)
        error = f"a loss of {float(found):.4g} where labels give {float(told):.4g}"
    expected = (
        "take probabilities of classes in place of labels where these are not known, as"
        " cross-entropy does, because they are looked for together with the inputs"
    )
    raise WrongValue("observation.loss_fn", expected, error, GRANT)


@dataclass(frozen=True)
class Run:
    """One attack at work: what it attacks, the targets it goes on with, its draws and its time."""

    observation: Observation
    labels: Tensor
    generator: torch.Generator
    watch: Watch
    progress: Progress | None = None

    @classmethod
    def of(
        cls, attack: Search, observation: Observation, generator: torch.Generator | None
    ) -> "Run":
        """From the attack's own settings; targets that are not granted are found first."""
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(attack.time_budget)
        labels = labels_of(observation, generator)
        return cls(observation, labels, generator, watch, attack.progress)

    @property
    def sent(self) -> Tensor:
        """What was sent, in one row."""
        return sent_row(self.observation)

    @property
    def parts(self) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """From inputs to the tensors of the message, in the order of `sent`."""
        parts = parts_of(self.observation)
        return lambda inputs: parts(inputs, self.labels)

    @property
    def message(self) -> Callable[[Tensor], Tensor]:
        """From inputs to the message in one row."""
        message = message_of(self.observation)
        return lambda inputs: message(inputs, self.labels)

    def noise(self, count: int) -> Tensor:
        """So many batches from N(0, I)."""
        return noise_start(self.observation, count, self.generator)

    def blank(self, status: str) -> Reconstruction:
        """Noise, for where an attack ended before it found anything."""
        inputs = self.clamp(self.noise(1)[0])
        return Reconstruction(inputs, self.labels, self.misfit(inputs), status=status)

    def clamp(self, inputs: Tensor) -> Tensor:
        """The inputs moved into the range, as far as it is known."""
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
        """Attack one observation; all randomness comes from the generator."""
        return self.search(Run.of(self, observation, generator))

    @abstractmethod
    def search(self, run: Run) -> Reconstruction:
        """The attack on the observation of a run; one that it cannot work on is an error."""


def message_misfit(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """‖g(inputs) - sent‖² / ‖sent‖²."""
    with torch.no_grad():
        message = message_of(observation)(inputs, labels)
        return float(relative_misfit(message, sent_row(observation)))


STEPS, STARTS, RATE = 150, 3, 0.1
"""Of the search for targets that cannot be read off."""


def labels_of(observation: Observation, generator: torch.Generator) -> Tensor:
    """The targets that the threat model grants, or those that the message gives away.

    Class labels are read off the last layer. Other targets are looked for together with the inputs
    (`joint_targets`); the attack then goes on with them as if they were known.
    """
    if observation.labels is None and observation.task != "classification":
        return joint_targets(observation, generator)
    labels = recover_labels(observation, generator)
    return labels.to(next(iter(observation.sent.values())).device)


def joint_targets(observation: Observation, generator: torch.Generator) -> Tensor:
    """argmin over x and t of ‖g(x, t) - sent‖² / ‖sent‖², the t of it: DLG's search, by Adam.

    Reference: Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019.
    """
    soft, sent = soft_targets(observation), sent_row(observation)
    message = message_of(observation)
    inputs = noise_start(observation, STARTS, generator)
    scale = 1.0
    if (
        soft.classes is None
    ):  # numbers of the size at which the message is as large as what was sent
        with torch.no_grad():
            moved = message(inputs[0], normal_like(soft.blank, generator))
            change = (moved - message(inputs[0], soft.blank)).norm()
        scale = float(sent.norm() / change.clamp(min=torch.finfo(change.dtype).tiny))
    variables = normal_like(soft.blank.expand(STARTS, *soft.blank.shape), generator)
    size = inputs[0].numel()

    def parts(row: Tensor) -> tuple[Tensor, Tensor]:
        return row[:size].view_as(inputs[0]), scale * row[size:].view_as(soft.blank)

    def cost(row: Tensor, _: float) -> Tensor:
        x, t = parts(row)
        return relative_misfit(message(x, soft.relaxed(t)), sent)

    start = torch.cat([inputs.flatten(1), variables.flatten(1)], 1)
    free = torch.full_like(soft.blank, torch.inf).flatten()
    low, high = (
        None if end is None else torch.cat([end.to(free).expand(inputs[0].shape).flatten(), rest])
        for end, rest in ((observation.low, -free), (observation.high, free))
    )
    found = minimise(cost, start, Descent(STEPS, RATE, "adam", "cosine"), low=low, high=high)
    return soft.settled(parts(found.best.inputs)[1]).detach()
