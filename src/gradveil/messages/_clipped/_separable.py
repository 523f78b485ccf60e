"""Whether a model treats examples one by one, as clipping each of them needs."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .._gradient import GradientMessage

ROUNDING = 16
"""Outputs of an example may move by so many units in the last place with the other examples."""

_SEPARATE: WeakKeyDictionary[nn.Module, set[Any]] = WeakKeyDictionary()
"""Shapes and modes in which a model was found to treat examples one by one."""

EXPLANATION = (
    "Parameter `message` should be a sum over examples, so that each can be clipped. Found {}. {}"
)
CLIENT = "Or clip the whole update, for one guarantee per client: unit='client'."


def mode_of(model: nn.Module) -> tuple[bool, ...]:
    """Which of its layers are in training mode."""
    return tuple(module.training for module in model.modules())


def check_separable(message: GradientMessage, inputs: Tensor) -> None:
    """Require a model whose outputs for one example do not depend on the others.

    BatchNorm in training mode is refused by name. All else is tested, once for each shape and mode:
    another example is put into every second place, and the outputs of the others must stay where
    they are; then the same the other way round.
    """
    _check_batch_norm(message.loss.model)
    _check_embeddings(message.loss.model)
    if message.declared_separable is False:
        raise ValueError(EXPLANATION.format("one that was declared not to be", CLIENT))
    known = _SEPARATE.setdefault(message.loss.model, set())
    key = (inputs.shape[1:], mode_of(message.loss.model))
    if message.declared_separable or len(inputs) < 2 or key in known:
        return
    if _stays(message, inputs):
        known.add(key)


def check_outputs(outputs: object, examples: int) -> None:
    """Require one row of outputs for each example."""
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (examples,):
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        what = f"a model that returns {found} for {examples} examples"
        advice = f"Let it return one tensor, examples first. {CLIENT}"
        raise ValueError(EXPLANATION.format(what, advice))


def _check_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            what = (
                f"that the layer `{name}` ({type(module).__name__}) mixes the examples of a batch"
            )
            advice = f"Use `model.eval()`, or GroupNorm in its place. {CLIENT}"
            raise ValueError(EXPLANATION.format(what, advice))


def _check_embeddings(model: nn.Module) -> None:
    """Refuse gradients that are divided by how often the whole batch uses a row."""
    for name, module in model.named_modules():
        if getattr(module, "scale_grad_by_freq", False):
            what = (
                f"that the layer `{name}` ({type(module).__name__}, scale_grad_by_freq=True)"
                " divides its gradient by counts of the whole batch"
            )
            raise ValueError(EXPLANATION.format(what, f"Leave that option out. {CLIENT}"))


@torch.no_grad()
def _stays(message: GradientMessage, inputs: Tensor) -> bool:
    """Whether it was proven; an error if the opposite was. Equal examples prove nothing."""
    outputs = message.loss.outputs(message.parameters, inputs)
    check_outputs(outputs, len(inputs))
    proven = True
    for first in (0, 1):
        places, others = slice(first, None, 2), slice(1 - first, None, 2)
        moved = inputs.clone()
        moved[places] = inputs[1 - first]
        proven &= not torch.equal(moved, inputs)
        after = message.loss.outputs(message.parameters, moved)
        rounding = ROUNDING * torch.finfo(outputs.dtype).eps * float(outputs.abs().max())
        if float((after - outputs)[others].abs().max()) > rounding:
            what = "that the model's outputs for one example change with another example"
            raise ValueError(
                EXPLANATION.format(what, f"Look for a layer that mixes them. {CLIENT}")
            )
    return proven
