"""Whether public examples are of the kind that a model was trained on."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradveil.messages import (
    GradientMessage,
    LocalUpdateMessage,
    Message,
    MovableMessage,
    couples_examples,
    movable,
    outputs_of,
)

from ._synthetic import synthetic

TRUSTED, STRANGE = 0.045, 0.08
"""Of `OutputCheck.fault` on made-up examples: up to the first, a model counts as fresh; from the
second on, as trained. Fresh models (MNIST CNN, CIFAR ConvNet-16) have at most 0.032; after 60 and
300 steps they have 0.086 to 2.2."""

SURE, UNSURE = 0.08, 0.16
"""Of `OutputCheck.scale` on public examples. A model that is too sure of itself has been trained,
and not on examples like these, or some of their labels are wrong."""

SHIFTED = (0.1, 0.3)
"""Of `OutputCheck.shift`, for numbers as targets: below the first examples are followed, above the
second not at all. A trained regression had -0.08 to -0.02 on examples of its own kind, 0.8 to 2.3
with other inputs and 40 to 2,700 with shifted targets."""

SKILL, ERRORS = 0.1, 2.5
"""A model knows examples if its skill is above the first, and above 0 by so many standard errors.
Real images have 0.25 to 4.5 after training, all others less than 0.09."""

MADE_UP = 128
"""Made-up examples that tell a trained model from a fresh one."""

OUTPUTS_SHARE = 4
"""Examples for each output: fewer leave the covariance of `OutputCheck.shift` unknown."""

MOST_OUTPUTS = 2**24
"""Outputs of made-up examples: a language model has many for each."""

AT_A_TIME = 16
"""Examples in a forward pass on a processor: of many at once, each takes longer."""

TURNS = 5
"""Wrong orders of the targets that are tried."""


class OutputCheck(NamedTuple):
    """What a model's outputs o on some examples have to do with their targets.

    δ is the gradient of the loss with respect to the outputs. Of `scale` and `shift` one standard
    error is taken off.
    """

    scale: float
    """The cosine of centred outputs and δ. Above 0 the model is surer than it should be."""
    shift: float
    """δ̄ᵀ (E δδᵀ - δ̄δ̄ᵀ)⁻¹ δ̄, about twice what another constant would take off the loss. With too few
    examples for that, ‖δ̄‖² / E‖δ‖²."""
    skill: float
    """By how much that cosine grows, in units of δ, when targets change places: 0 where outputs
    have nothing to do with the targets."""
    skill_error: float
    """Its standard error."""

    @property
    def fault(self) -> float:
        """What is wrong with the outputs in ways that training removes."""
        return max(self.scale, 0.0) + max(self.shift, 0.0)

    @property
    def is_known(self) -> bool:
        """Whether the outputs agree with the targets beyond chance."""
        return self.skill > max(SKILL, ERRORS * self.skill_error)


def trust_in(message: Message, inputs: Tensor, generator: torch.Generator) -> float:
    """How far a plan may follow these examples, from 0 (not at all) to 1.

    A trained model knows examples of the kind that it was trained on: its outputs agree with their
    targets. If it does not know them, they are of another kind (or have other labels), and their
    gradients say little about those of the private batch. A fresh model knows nothing, and follows
    all examples. It is told from a trained one by its outputs on made-up examples: training leaves
    them sure of themselves, and so mostly wrong, on what it has never seen.

    In a regression made-up targets tell nothing of the sort. There examples are not followed if
    another constant would clearly be better: their targets, or what the model makes of their
    inputs, lie elsewhere. That holds for many a fresh model, too, whose plan is then isotropic.

    1 where outputs cannot be seen.

    Args:
        message: The message of these examples.
        inputs: The examples.
        generator: For the made-up ones.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import GradientMessage
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 4, 2])
    >>> message = GradientMessage(model, cross_entropy, torch.tensor([0, 1]))
    >>> generator = torch.Generator().manual_seed(0)
    >>> 0 <= trust_in(message, torch.rand(2, 3), generator) <= 1
    True
    """
    found = check_outputs(message, inputs)
    if found is None:
        return 1.0
    sure = _falling(found.scale, SURE, UNSURE)
    if movable(message).targets.is_floating_point():
        sure = min(sure, _falling(found.shift, *SHIFTED))
    if found.is_known:
        return sure
    try:
        return min(sure, freshness(message, inputs, generator))
    except (TypeError, ValueError):  # none can be made up, or the model does not take them
        return sure


def freshness(
    message: Message, inputs: Tensor, generator: torch.Generator, fewest: int = MADE_UP
) -> float:
    """1 for a fresh model and 0 for a trained one, by its outputs on made-up examples.

    Of the inputs only shape, type and device are read. As few as `fewest` of them do where they are
    four for each output.

    Raises:
        ModelError: Where the model fails on them.
    """
    outputs = _outputs_of_one(message, inputs)
    wanted = max(fewest, OUTPUTS_SHARE * outputs)
    count = min(MADE_UP, wanted, max(4, MOST_OUTPUTS // outputs))
    found = check_outputs(*synthetic(message, inputs, generator, count))
    return 1.0 if found is None else _falling(found.fault, TRUSTED, STRANGE)


def check_outputs(message: Message, inputs: Tensor) -> OutputCheck | None:
    """Compare outputs with targets; `None` where outputs cannot be seen."""
    if not isinstance(message, (GradientMessage, LocalUpdateMessage)) or len(inputs) < 4:
        return None
    outputs = _outputs(message, inputs)
    targets = movable(message).targets
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
        return None
    if not isinstance(targets, Tensor) or not outputs.is_floating_point():
        return None
    right = _signals(message, outputs, targets)
    turns = range(1, min(TURNS, len(inputs) - 1) + 1)
    wrong = torch.stack([_signals(message, outputs, targets.roll(n, 0)) for n in turns]).mean(0)
    return _compared(outputs.double().flatten(1), right, wrong)


def _outputs(message: GradientMessage | LocalUpdateMessage, inputs: Tensor) -> Any:
    """What the model returns, of some examples at a time where it takes them one by one."""
    alone = inputs.device.type == "cpu" and not couples_examples(message.loss.model)
    parts = inputs.split(AT_A_TIME) if alone else (inputs,)
    with torch.no_grad():
        outputs = [outputs_of(message, part) for part in parts]
    rows = all(isinstance(o, Tensor) and o.dim() for o in outputs)
    return torch.cat(outputs) if len(outputs) > 1 and rows else outputs[0]


def _outputs_of_one(message: Message, inputs: Tensor) -> int:
    """How many numbers the model returns for an example."""
    if not isinstance(message, (GradientMessage, LocalUpdateMessage)):
        return 1
    blank = inputs.new_zeros((2, *inputs.shape[1:]))  # BatchNorm takes no single one
    outputs = outputs_of(message, blank)
    return max(1, outputs.numel() // 2) if isinstance(outputs, Tensor) else 1


def _signals(message: MovableMessage, outputs: Tensor, targets: Tensor) -> Tensor:
    """δ, one row for each example, of outputs that are given."""
    loss = message.loss  # type: ignore[attr-defined]
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = loss.loss_of_outputs(leaf, targets)
        if not value.requires_grad:  # a loss that depends on no output, as clients will be told
            return torch.zeros_like(leaf, dtype=torch.float64).flatten(1)
        (delta,) = torch.autograd.grad(value, leaf)
    return delta.double().flatten(1)


def _compared(outputs: Tensor, right: Tensor, wrong: Tensor) -> OutputCheck:
    count = len(outputs)
    centred = outputs - outputs.mean(0)
    size = float((centred.square().sum() * right.square().sum()).sqrt()) / count
    if not size > 0:
        return OutputCheck(0.0, 0.0, 0.0, 0.0)
    scale, scale_error = _mean_and_error((centred * right).sum(1) / size)
    skill, skill_error = _mean_and_error((centred * (wrong - right)).sum(1) / size)
    return OutputCheck(scale - scale_error, _shift(right), skill, skill_error)


def _mean_and_error(row: Tensor) -> tuple[float, float]:
    return float(row.mean()), float(row.std()) / len(row) ** 0.5


def _shift(signals: Tensor) -> float:
    """Less its mean and one standard error by chance: D/N and √(2D)/N for D directions."""
    count, mean = len(signals), signals.mean(0)
    if OUTPUTS_SHARE * signals.shape[1] > count:
        return float(mean.square().sum() / signals.square().sum(1).mean()) - 2 / count
    values, vectors = torch.linalg.eigh(signals.T @ signals / count)
    real = values > 1e-6 * values.max()
    share = float(((vectors.T @ mean)[real].square() / values[real]).sum())
    directions = int(real.sum())
    chance: float = (directions + (2 * directions) ** 0.5) / count
    return share / max(1 - share, 1e-9) - chance


def _falling(value: float, start: float, end: float) -> float:
    """1 up to `start`, 0 from `end` on, and a line between them."""
    return min(1.0, max(0.0, (end - value) / (end - start)))
