"""What stands for targets that are not known: numbers, or a distribution over classes."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradveil._checks import first_line
from gradveil._random import normal_like
from gradveil.messages import FunctionalLoss

from ..._evidence import random_inputs
from ..._observation import Observation
from .._candidates import message_of

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

    def relaxed(self, variables: Tensor) -> Tensor:
        """What the loss is given on the way."""
        return variables if self.classes is None else variables.softmax(self.classes)

    def settled(self, variables: Tensor) -> Tensor:
        """The targets at the end: numbers, or the likeliest classes."""
        return variables if self.classes is None else variables.argmax(self.classes)


def soft_targets(observation: Observation, generator: torch.Generator) -> SoftTargets:
    """Variables for the targets of an observation; an error where the message hides them.

    That is where the loss takes no probabilities in place of labels, or where the gradient does not
    change with the targets but by jumps (an absolute error).
    """
    like = next(iter(observation.sent.values()))
    shape = (observation.batch_size, *observation.target_shape)
    if observation.task == "numbers":
        soft = SoftTargets(like.new_zeros(shape), None)
    else:
        soft = _distributions(observation, shape, generator)
    _check_moves(observation, soft, generator)
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
    raise ValueError(
        "Parameter `observation.loss_fn` should take probabilities of classes in place of labels"
        " where these are not known, as cross-entropy does, because they are looked for together"
        f" with the inputs. Found {error}. {GRANT}"
    )


def _check_moves(observation: Observation, soft: SoftTargets, generator: torch.Generator) -> None:
    """Require that the message follows the targets."""
    inputs = random_inputs(observation, observation.batch_size, generator)
    variables = normal_like(soft.blank, generator).requires_grad_()
    with torch.enable_grad():
        try:
            values = message_of(observation)(inputs, soft.relaxed(variables))
            (slope,) = torch.autograd.grad(
                values.square().sum(), variables, allow_unused=True, materialize_grads=True
            )
        except RuntimeError as failed:
            raise ValueError(_stuck(f"`{first_line(failed)}`")) from failed
    if not bool(slope.any()):
        raise ValueError(_stuck("that its derivative is 0"))


def _stuck(found: str) -> str:
    return (
        "Parameter `observation.loss_fn` should have a gradient that follows the targets where"
        f" these are not known, because they are looked for. Found {found}. {GRANT}"
    )
