"""Gradient accumulation: several micro-batches, one optimizer step, one draw of noise."""

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradveil._checks import WrongValue, check_choice, check_finite, check_structure
from gradveil._random import advance, generator_or_fresh, seed_from
from gradveil._tensors import Tensors, add_to_grad
from gradveil.messages import (
    GradientMessage,
    LossFunction,
    check_match,
    gradient_of,
    same_bits,
)
from gradveil.sensitivity import Moments

if TYPE_CHECKING:
    from ._base import Defense


class Accumulation:
    """One defended step over micro-batches; see `Defense.accumulate`.

    Adds up g = Σ_k w_k g_k(x_k) and its moments over micro-batches x_k. These share no inputs, so
    ∇_x g has the blocks w_k ∇g_k, and ‖∇_x g_i‖² = Σ_k w_k² ‖∇g_k,i‖²: exact, whatever happens
    inside of a micro-batch. The squares of the values are those of the sum, g_i². A shape that is
    not private is made once, at the end, for a batch of all examples.
    """

    def __init__(
        self,
        defense: "Defense",
        model: nn.Module,
        loss_fn: LossFunction,
        generator: torch.Generator | None,
        reduction: str | None,
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
        self._sum: tuple[Tensors, Moments] | None = None
        self._last: tuple[GradientMessage, Tensor] | None = None
        self._kept: dict[Any, Any] = {}
        self._failed = False
        self._begun: list[tuple[Any, int, Tensor | None]] = []

    def __enter__(self) -> "Accumulation":
        if self._is_open or self._sum is not None:
            raise RuntimeError(
                "An accumulation should be entered once. Found it in use. Call"
                " `defense.accumulate` again for each step."
            )
        kept = [(one, n, None if t is None else t.clone()) for one, n, t in self._state()]
        self._is_open, self._begun = True, kept
        return self

    def add(self, inputs: Tensor, targets: Any) -> None:
        """Take in one micro-batch. If this raises, the ones before stay as they are.

        Except for a private defense: the step is aborted, since skipping a failed micro-batch would
        reveal which example failed.
        """
        if not self._is_open:
            raise RuntimeError(
                "A micro-batch should be added inside of its block. Found it outside. Use"
                " `with defense.accumulate(model, loss_fn) as step: step.add(inputs, targets)`."
            )
        self._check_state()
        self._failed = self._defense.adds_up
        kind = gradient_of(inputs)
        self._defense.check_batch(inputs)
        if len(inputs):
            check_match(inputs, targets, tokens=kind.takes_tokens)
        if self.examples:
            advance(self._generator)  # a micro-batch has dropout of its own
        message = kind(self._model, self._loss_fn, targets, seed=seed_from(self._generator))
        part, past, fresh = self._part(message, inputs.detach())
        self._sum = part if self._sum is None else _added(self._sum, past, part, fresh)
        self._last = message, inputs
        self.examples += len(inputs)
        self._failed = False

    def _part(
        self, message: GradientMessage, inputs: Tensor
    ) -> tuple[tuple[Tensors, Moments], float, float]:
        """What a micro-batch gives, and how much what there was and it count."""
        defense: Any = self._defense
        if defense.adds_up:
            return defense.observe(message, inputs, self._generator, kept=self._kept), 1.0, 1.0
        reduction = self._checked_reduction(message, inputs) if len(inputs) else self._reduction
        part = defense.observe(message, inputs, self._generator)
        self._reduction, count = reduction, self.examples + len(inputs)
        if reduction != "mean":
            return part, 1.0, 1.0
        return part, self.examples / count, len(inputs) / count

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._is_open = False
        if kind is not None:
            return
        self._check_state()
        if self._sum is None or self._last is None:
            raise ValueError(
                "A step should have at least one micro-batch. Found none. Call"
                " `step.add(inputs, targets)` in the block, or skip the step; for PrivateNoise add"
                " an empty one, as a step that is left out tells that nobody was drawn."
            )
        (values, moments), (message, last) = self._sum, self._last
        whole = last.new_empty(()).expand(self.examples, *last.shape[1:])
        given = self._defense.given(moments, message, whole, self._generator)
        sent = self._defense.made(given).apply(values, self._generator)
        advance(self._generator)  # as after `backward`: the next step must differ
        check_finite(sent, "what the defense gave")
        add_to_grad(self._model, sent)
        self.sent = sent

    def _checked_reduction(self, message: GradientMessage, inputs: Tensor) -> str:
        """How micro-batches are weighted; tested on the first that has two examples."""
        stated = self._reduction or message.reduction
        if stated != "sum":
            _check_countable(message)
        if stated is None or (not self._is_tested and len(inputs) > 1):
            stated, self._is_tested = _reduction_at(message, inputs, stated), len(inputs) > 1
        return stated

    def _check_state(self) -> None:
        if self._failed:
            raise RuntimeError(
                "A private step should have all of its micro-batches. Found one that failed. Leave"
                " the block; nothing was added to `.grad`."
            )
        if not self._is_as_before():
            raise RuntimeError(
                "The weights should stay as they are while micro-batches are added, and with a"
                " private defense buffers and modes, too. Found that they changed in the block."
                " Step the optimizer after it; nothing was added to `.grad`."
            )

    def _state(self) -> list[tuple[Any, int, Tensor | None]]:
        """The parameters, how often each was changed in place, and which numbers it had.

        The numbers (`.data` has no versions), buffers and modes for a private defense only, whose
        model runs once a step.
        """
        private, model = self._defense.adds_up, self._model
        held = [*model.parameters(), *(model.buffers() if private else ())]
        modes = [(module, module.training, None) for module in model.modules() if private]
        return modes + [(t, t._version, t.detach() if private else None) for t in held]

    def _is_as_before(self) -> bool:
        now, before = self._state(), self._begun
        return len(now) == len(before) and all(
            a is b and n == m and (x is None or y is None or same_bits(x, y))
            for (a, n, x), (b, m, y) in zip(now, before, strict=True)
        )


def _added(
    whole: tuple[Tensors, Moments], past: float, part: tuple[Tensors, Moments], fresh: float
) -> tuple[Tensors, Moments]:
    """Values and moments of what there was, `past` times, and the micro-batch, `fresh` times."""
    (before, a), (values, b) = whole, part
    check_structure(values, before, "message(inputs)", "the micro-batches before")
    mixed = _mix(before, past, values, fresh)
    seen = {n: v.to(a.like[n].dtype) for n, v in mixed.items()}
    squares = {
        field: _mix_squares(getattr(a, field), past**2, getattr(b, field), fresh**2)
        for field in ("squared_sensitivities", "second_squares")
    }
    moments = replace(
        Moments.of_values(seen, a.input_size + b.input_size),
        hidden=max(a.hidden, b.hidden),
        **squares,  # type: ignore[arg-type]
    )
    return mixed, moments


def _mix(a: Tensors, weight_a: float, b: Tensors, weight_b: float) -> Tensors:
    return {name: (weight_a * a[name]).add_(b[name], alpha=weight_b) for name in a}


def _mix_squares(
    a: Tensors | None, weight_a: float, b: Tensors | None, weight_b: float
) -> Tensors | None:
    """Sums of squares; one that gets too small for a float stays the least positive number."""
    if a is None or b is None:
        return None
    mixed = _mix(a, weight_a, b, weight_b)
    for name, square in mixed.items():
        least = torch.finfo(square.dtype).tiny
        lost = (square < least) & ((a[name] > 0) | (b[name] > 0))
        square.masked_fill_(lost, least)
    return mixed


def _check_countable(message: GradientMessage) -> None:
    """Require a mean in which every example of the batch counts the same.

    One with class weights or with ignored targets is divided by something else than the number of
    examples, which a micro-batch alone does not know.
    """
    loss_fn: Any = message.loss.loss_fn
    targets, options = message.targets, {}
    if isinstance(loss_fn, functools.partial):
        loss_fn, options = loss_fn.func, loss_fn.keywords
    elif isinstance(loss_fn, nn.Module):
        options = vars(loss_fn) | dict(loss_fn.named_buffers())
    functions = (nn.functional.cross_entropy, nn.functional.nll_loss)
    if loss_fn not in functions and not isinstance(loss_fn, (nn.CrossEntropyLoss, nn.NLLLoss)):
        return
    if options.get("weight") is not None:
        expected = "count every example the same, to be accumulated"
        advice = "Use reduction='sum' and divide the learning rate."
        raise WrongValue("loss_fn", expected, "a mean with class weights", advice)
    if isinstance(targets, Tensor) and not targets.is_floating_point():
        index = options.get("ignore_index", -100)  # PyTorch's own
        if ignored := int((targets == index).sum()):
            found = f"{ignored} times {index}, so that the mean is not one over examples"
            advice = "Leave those examples out, or use reduction='sum'."
            raise WrongValue("targets", "have no ignored entries, to be accumulated", found, advice)


def _reduction_at(message: GradientMessage, inputs: Tensor, stated: str | None) -> str:
    """ "mean" or "sum", by what the loss makes of the first example and of the others.

    L = (L_1 + (n - 1) L_rest) / n for a mean, L = L_1 + L_rest for a sum.
    """
    losses, count = _split_losses(message, inputs), len(inputs)
    fitting = ["mean", "sum"]
    if losses is not None:
        whole, first, rest = losses
        expected = {"mean": (first + (count - 1) * rest) / count, "sum": first + rest}
        scale = 1e-3 * max(abs(whole), abs(first), abs(rest))
        fitting = [name for name, value in expected.items() if abs(value - whole) <= scale]
    if stated is None and len(fitting) == 2:
        wanted = "be 'mean' or 'sum' for a loss that does not say which it is"
        found = "None, and a micro-batch that does not tell"
        raise WrongValue("reduction", wanted, found, "Pass it to `accumulate`.")
    if losses is not None and (not fitting or stated not in (None, *fitting)):
        wanted = f"be a {stated or 'mean or a sum'} over examples, to be accumulated"
        found = f"{whole:.6g} for {count} examples, {first:.6g} for the first alone"
        advice = "Use another loss, or one batch."
        raise WrongValue("loss_fn", wanted, f"{found} and {rest:.6g} for the others", advice)
    return stated or fitting[0]


def _split_losses(message: GradientMessage, inputs: Tensor) -> tuple[float, ...] | None:
    """The loss of all examples, of the first and of the others; `None` where it cannot be cut."""
    targets, loss = message.targets, message.loss
    if len(inputs) < 2 or not isinstance(targets, Tensor) or len(targets) != len(inputs):
        return None
    with torch.no_grad():
        outputs = loss.outputs(message.parameters, inputs)
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
            return None
        cuts = (slice(None), slice(0, 1), slice(1, None))
        try:
            losses = [float(loss.loss_of_outputs(outputs[cut], targets[cut])) for cut in cuts]
        except (RuntimeError, ValueError, IndexError):  # not made for a single example
            return None
    return tuple(losses) if all(map(math.isfinite, losses)) else None
