"""Deep Leakage from Gradients, and its improvement: labels first."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradveil._checks import WrongValue, first_line
from gradveil._random import generator_or_fresh, named_stream, normal_like
from gradveil._tensors import relative_misfit

from ._attack import FINISHED, Reconstruction, Search
from ._descent import Watch, clamp, message_of, minimise_lbfgs, sent_row
from ._labels import recover_labels
from ._model_layers import loss_of, random_inputs
from ._observation import Observation, check_observation

GRANT = "Grant the targets: `ThreatModel(labels='known')`."


@dataclass(frozen=True)
class SoftTargets:
    """The variables that a search moves in place of the targets, as DLG does for class labels.

    Numbers are moved themselves, in units of `scale`. Labels are the softmax of logits along the
    dimension `classes`, which a loss such as cross-entropy takes as the probabilities of classes.
    `known` targets leave nothing to be moved. `blank` are zeros in the shape of the variables.
    """

    blank: Tensor
    classes: int | None = None
    known: Tensor | None = None
    scale: float = 1.0

    def of(self, variables: Tensor, settled: bool = False) -> Tensor:
        """What the loss is given on the way; settled: numbers, or the likeliest classes."""
        if self.known is not None or self.classes is None:
            return self.scale * variables if self.known is None else self.known
        return variables.argmax(self.classes) if settled else variables.softmax(self.classes)


def soft_targets(observation: Observation) -> SoftTargets:
    """Variables for the targets of an observation; an error where the message hides them.

    That is where the loss takes no probabilities in place of labels, or where the gradient does not
    change with the targets but by jumps (an absolute error).
    """
    generator = named_stream("targets")  # the attack's own draws stay the same
    like = next(iter(observation.sent.values()))
    shape = (observation.batch_size, *observation.target_shape)
    soft = SoftTargets(like.new_zeros(shape))
    if observation.task != "numbers":
        soft = _distributions(observation, shape, generator)
    inputs = random_inputs(observation, observation.batch_size, generator)
    variables = normal_like(soft.blank, generator).requires_grad_()
    slope, found = soft.blank, "that its derivative is 0"
    with torch.enable_grad():
        try:
            values = message_of(observation, soft.of(variables))(inputs)
            if observation.task == "numbers":  # the message is then as large as what was sent
                change = values - message_of(observation, soft.blank)(inputs)
                size = float(sent_row(observation).norm()) / (float(change.detach().norm()) or 1.0)
                soft = replace(soft, scale=size)
            (slope,) = torch.autograd.grad(
                values.square().sum(), variables, allow_unused=True, materialize_grads=True
            )
        except RuntimeError as failed:
            found = f"`{first_line(failed)}`"
    if not bool(slope.any()):
        expected = "have a gradient that follows the targets, which are looked for with the inputs"
        raise WrongValue("observation.loss_fn", expected, found, GRANT)
    return soft


def _distributions(
    observation: Observation, shape: tuple[int, ...], generator: torch.Generator
) -> SoftTargets:
    """Probabilities in a layout in which the loss takes them: classes second, or last."""
    loss = loss_of(observation)
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
    expected = "take probabilities of classes in place of labels, which are looked for, too"
    raise WrongValue("observation.loss_fn", expected, error, GRANT)


@dataclass(frozen=True)
class DLG(Search):
    """Match the message in inputs and soft labels together, by L-BFGS.

    Minimises ‖g(x, softmax(z)) - sent‖² / ‖sent‖² over x and z. It uses no label knowledge, not
    even what the threat model grants, and needs a loss that takes class probabilities, as
    `torch.nn.functional.cross_entropy` does. Targets that are numbers are optimised themselves.
    Made for smooth models and few images: with ReLU or large batches it rarely converges. Starts
    are from N(0, 0.1² I), from where it converges faster than from the paper's N(0, I).

    Reference: Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019.

    Args:
        steps: L-BFGS iterations of one start, at most.
        restarts: Starts at most; the next is tried only if none before reached `tolerance`.

    >>> DLG(steps=50)(seen, torch.Generator().manual_seed(0)).targets
    tensor([1])
    """

    steps: int = 2000
    restarts: int = 3
    tolerance: float = 3e-8

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        targets, like = self._targets(observation, generator), next(iter(observation.sent.values()))
        blank = like.new_zeros(observation.batch_size, *observation.input_shape)

        def cost(row: Tensor) -> Tensor:
            own = targets.of(row[blank.numel() :].view_as(targets.blank))
            message = observation.message(own)(row[: blank.numel()].view_as(blank))
            return relative_misfit(message, observation.sent)

        points, told = [], self.progress
        for _ in range(self.restarts):
            drawn = [normal_like(part, generator).flatten() for part in (blank, targets.blank)]
            point = minimise_lbfgs(
                cost, 0.1 * torch.cat(drawn), steps=self.steps, watch=watch, progress=told,
                tolerance=self.tolerance,
            )  # fmt: skip
            points.append(point)
            if point.cost <= self.tolerance or point.status != FINISHED:
                break
        best = min(points, key=lambda point: point.cost)
        inputs, rest = best.inputs.tensor_split([blank.numel()])
        inputs = clamp(inputs.view_as(blank), observation.low, observation.high)
        labels = targets.of(rest.view_as(targets.blank), settled=True)
        return Reconstruction(inputs, labels, best.cost, points[-1].status)

    def _targets(self, observation: Observation, generator: torch.Generator) -> SoftTargets:
        return soft_targets(observation)


@dataclass(frozen=True)
class IDLG(DLG):
    """Labels from the last layer first (`recover_labels`), then matching in the inputs alone.

    Minimises ‖g(x, ŷ) - sent‖² / ‖sent‖² over x by L-BFGS. For one example the label is exact;
    iDLG is stated for one, and batches here use the counts that `recover_labels` finds.

    Reference: Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020.

    >>> IDLG(steps=50)(seen, torch.Generator().manual_seed(0)).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    def _targets(self, observation: Observation, generator: torch.Generator) -> SoftTargets:
        labels = recover_labels(observation, generator)
        return SoftTargets(next(iter(observation.sent.values())).new_zeros(0), known=labels)
