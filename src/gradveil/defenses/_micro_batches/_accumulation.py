"""Gradient accumulation: several micro-batches, one optimizer step, one draw of noise."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradveil._checks import check_choice, check_finite
from gradveil._random import advance, generator_or_fresh, seed_from
from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, LossFunction, check_match, gradient_of

from ._loss_weights import check_countable, reduction_at

if TYPE_CHECKING:
    from .._base import Defense


class Accumulation:
    """One defended step over micro-batches; see `Defense.accumulate`.

    Args:
        defense: What defends the step.
        model: The model whose `.grad` is added to.
        loss_fn: A mean or a sum over examples.
        generator: For probes, noise and dropout.
        reduction: "mean" or "sum", where the loss does not say so itself.
    """

    def __init__(
        self,
        defense: "Defense",
        model: nn.Module,
        loss_fn: LossFunction,
        generator: torch.Generator | None = None,
        *,
        reduction: str | None = None,
    ) -> None:
        if reduction is not None:
            check_choice(reduction, "reduction", ("mean", "sum"))
        self.sent: Tensors | None = None
        """What was added to `.grad`, which is all that a client may send; `None` until the end."""
        self.examples = 0
        """In the micro-batches so far."""
        self._defense, self._model, self._loss_fn = defense, model, loss_fn
        self._generator = generator_or_fresh(generator, secure=defense.secure)
        self._reduction, self._is_open, self._is_tested = reduction, False, False
        self._has_any = False
        self._observer = defense.observer()
        self._versions = _versions(model)

    def __enter__(self) -> "Accumulation":
        if self._is_open or self._has_any:
            raise RuntimeError(
                "An accumulation should be entered once. Found it in use. Call"
                " `defense.accumulate` again for each step."
            )
        self._is_open, self._versions = True, _versions(self._model)
        return self

    def add(self, inputs: Tensor, targets: Any) -> None:
        """Take in one micro-batch. If this raises, the ones before stay as they are."""
        if not self._is_open:
            raise RuntimeError(
                "A micro-batch should be added inside of its block. Found it outside. Use"
                " `with defense.accumulate(model, loss_fn) as step: step.add(inputs, targets)`."
            )
        kind = gradient_of(inputs)
        self._defense.check_batch(inputs)
        if len(inputs):
            check_match(inputs, targets, tokens=kind.takes_tokens)
        self._check_unmoved()
        if self.examples:
            advance(self._generator)  # a micro-batch has dropout of its own
        seed = seed_from(self._generator)
        message = kind(self._model, self._loss_fn, targets, seed=seed)
        reduction = self._checked_reduction(message, inputs) if len(inputs) else self._reduction
        past = fresh = 1.0
        count = self.examples + len(inputs)
        if reduction == "mean":
            past, fresh = self.examples / count, len(inputs) / count
        self._observer.add(message, inputs.detach(), self._generator, past, fresh)
        self.examples, self._reduction, self._has_any = count, reduction, True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_open = False
        if kind is not None:
            return
        if not self._has_any:
            raise ValueError(
                "A step should have at least one micro-batch. Found none. Call"
                " `step.add(inputs, targets)` in the block, or skip the step; for PrivateNoise add"
                " an empty one, as a step that is left out tells that nobody was drawn."
            )
        self._check_unmoved()
        values, moments = self._observer.finish()
        sent = self._defense.plan(moments).apply(values, self._generator)
        advance(self._generator)  # as after `backward`: the next step must differ
        check_finite(sent, "what the defense gave")
        add_to_grad(self._model, sent)
        self.sent = sent

    def _checked_reduction(self, message: GradientMessage, inputs: Tensor) -> str:
        """How micro-batches are weighted; tested on the first that has two examples."""
        stated = self._reduction or message.reduction
        check_countable(message, stated)
        if stated is not None and (self._is_tested or len(inputs) < 2):
            return stated
        reduction = reduction_at(message, inputs, stated)
        self._is_tested = len(inputs) > 1
        return reduction

    def _check_unmoved(self) -> None:
        if _versions(self._model) != self._versions:
            raise RuntimeError(
                "The weights should stay as they are while micro-batches are added. Found that they"
                " changed in the block. Step the optimizer after it; nothing was added to `.grad`."
            )


def add_to_grad(model: nn.Module, sent: Tensors) -> None:
    """Add what was sent to `.grad`, as `loss.backward()` adds the gradient."""
    for name, parameter in model.named_parameters():
        if name in sent:
            old, new = parameter.grad, sent[name].detach()
            parameter.grad = new.clone() if old is None else old + new


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Which tensors the parameters are, and how often each was changed in place."""
    return [(id(parameter), parameter._version) for parameter in model.parameters()]
