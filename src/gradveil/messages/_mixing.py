"""Whether a model or a loss mixes the examples of a batch: the one place that answers.

Three kinds of answers. Layers say it of themselves (`couples_examples`, `check_layers`). A model is
tried (`rows_are_independent`), a loss, too (`is_sum_over_examples`, `penalty_of`): not all that mix
show it. No guarantee rests on a trial: clipping computes each example alone (`isolated`), and a
model that mixes would only be trained as something else than its author thinks.
"""

# ruff: noqa: NPY002  -- numpy's global generator is looked at, not drawn from
import functools
import inspect
import operator
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from gradveil._checks import WrongValue, is_out_of_memory
from gradveil._tensors import Tensors

from ._functional import FunctionalLoss, derivative, each_row, leaves
from ._layers import tensors_in

if TYPE_CHECKING:
    from ._gradient import GradientMessage

ROUNDING = 16
"""Outputs of an example may move by so many units in the last place with the other examples."""


def couples_examples(model: nn.Module) -> bool:
    """Whether a layer mixes the examples of a batch, or draws one random mask for all of them."""
    return any(
        _normalises_batch(m) or (isinstance(m, _DropoutNd) and m.training and m.p > 0)
        for m in model.modules()
    )


def _normalises_batch(module: nn.Module) -> bool:
    """Whether a layer is BatchNorm that takes the statistics of the batch at hand."""
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)


def check_layers(model: nn.Module) -> None:
    """Refuse BatchNorm in training mode, and gradients that are divided by counts of a batch."""
    for name, module in model.named_modules():
        if _normalises_batch(module):
            raise refusal(
                f"that the layer `{name}` ({type(module).__name__}) mixes the examples of a batch",
                "Use `model.eval()`, or GroupNorm in its place.",
            )
        if getattr(module, "scale_grad_by_freq", False):
            raise refusal(
                f"that the layer `{name}` ({type(module).__name__}, scale_grad_by_freq=True)"
                " divides its gradient by counts of the whole batch",
                "Leave that option out.",
            )


def check_outputs(outputs: object, examples: int) -> None:
    """Require one row of outputs for each example."""
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (examples,):
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise refusal(
            f"a model that returns {found} for {examples} example{'s' * (examples != 1)}",
            "Let it return one tensor, examples first, for a single example, too"
            " (`squeeze(1)` in place of `squeeze()`).",
        )


def refusal(found: str, advice: str) -> ValueError:
    """Why examples cannot be clipped."""
    expected = "be a sum over examples, so that each can be clipped"
    advice = f"{advice} Or clip the whole update, for one guarantee per client: unit='client'."
    return WrongValue("message", expected, found, advice)


@torch.no_grad()
def rows_are_independent(loss: FunctionalLoss, parameters: Tensors, batch: Tensor) -> bool | None:
    """Whether examples have the same outputs beside others as beside copies of themselves.

    In batches of one size, where rounding is the same. `None` where that cannot be said: the model
    fails, draws random numbers, returns what is not finite, or does not return one row for each
    example, a single one too.
    """
    before = random.getstate(), np.random.get_state()[2]  # type: ignore[index]
    try:
        together, drew = loss.outputs_and_draws(parameters, batch)
        drew |= before != (random.getstate(), np.random.get_state()[2])  # type: ignore[index]
        copies = [loss.outputs(parameters, row.expand(batch.shape)) for row in batch.split(1)]
        alone = torch.cat([same[place : place + 1] for place, same in enumerate(copies)])
        single = loss.outputs(parameters, batch[:1])
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None
    if drew or together.shape != alone.shape or single.shape != alone[:1].shape:
        return None
    if not alone.isfinite().all():
        return None
    rounding = ROUNDING * torch.finfo(alone.dtype).eps * float(alone.abs().max())
    return bool((together - alone).abs().max() <= rounding)


def made_up_batch(like: Tensor) -> Tensor:
    """Three examples in the shape and type of `like`, a batch of one; its values do not count.

    As integers they are 0 and 1, which every table has.
    """
    return torch.cat([(size * _pattern(like)).to(like.dtype) for size in (0.5, 1.5, 1.0)])


def loss_reduction(loss_fn: Any) -> str | None:
    """ "mean" or "sum" for a loss of PyTorch that says so, `None` for all others."""
    reduction: Any = None
    if isinstance(loss_fn, functools.partial):
        default = loss_reduction(loss_fn.func)
        reduction = loss_fn.keywords.get("reduction", default) if default else None
    elif isinstance(loss_fn, torch.nn.Module):
        is_torch = type(loss_fn).__module__.startswith("torch.nn")
        reduction = getattr(loss_fn, "reduction", None) if is_torch else None
    elif getattr(loss_fn, "__module__", None) == "torch.nn.functional":
        parameter = inspect.signature(loss_fn).parameters.get("reduction")
        reduction = parameter.default if parameter else None
    return reduction if reduction in ("mean", "sum") else None


def is_sum_over_examples(loss: Callable[[Tensor], Tensor], outputs: Tensor) -> bool:
    """Whether moving some examples' outputs leaves the other examples' gradients where they are.

    The property that matters is ∂²L/∂o_b∂o_c = 0 for b ≠ c. It is tested by moving the examples
    whose number has a given binary digit, and then the others: any two differ in some digit.
    """
    count = outputs.shape[0] if outputs.dim() > 0 else 1
    numbers = torch.arange(count, device=outputs.device)
    digits = [(numbers >> place) % 2 == 1 for place in range((count - 1).bit_length())]
    before = grad(loss)(outputs)
    for moved in (*digits, *(~digit for digit in digits)):
        other = outputs.clone()
        steps = torch.linspace(0.3, 0.9, other[moved].numel(), dtype=other.dtype)
        other[moved] += steps.to(other.device).view_as(other[moved])
        after = grad(loss)(other)
        scale = float(torch.maximum(before.abs().max(), after.abs().max()))
        if not torch.allclose(before[~moved], after[~moved], rtol=1e-4, atol=1e-6 * scale):
            return False
    return True


CLOSE = 1e-3
"""How far gradients of a batch may be from those of its examples, relative to the largest; four
units in the last place in half precision."""

MOST_OUTPUTS = 2**22
"""Made up for a loss."""

DIVIDE_BY_WEIGHTS = (F.cross_entropy, F.nll_loss)
"""Losses whose mean is divided by the weights of the classes in the batch."""


_KNOWN: WeakKeyDictionary[Any, dict[Any, str | None]] = WeakKeyDictionary()
"""How losses add examples up, by the shapes they were looked at with."""


def penalty_of(message: "GradientMessage", outputs: Tensor | None, size: int) -> Tensors | None:
    """The gradient of what the loss adds for the parameters alone, such as λ‖Θ‖²; {} if nothing.

    `None` where model or loss fail on what is made up here: then nothing is known of it.

    It belongs outside of the clip: an example has no part in it. That it is made of the parameters
    and nothing else is not found by trying: each operation of the loss is followed, and data and
    parameters may meet in a sum only. For a loss that is a sum over examples it is divided by
    `size`, as the sum is.

    Args:
        message: Whose loss it is.
        outputs: What the model returns for one example, for the shape; `None`: nothing is known.
        size: The fixed number of examples that sums are divided by.

    Raises:
        ValueError: If the loss is no mean or sum over examples, or has a term of parameters and
            examples together.
    """
    if outputs is None:
        return None
    try:
        penalty = _penalty(message, outputs)
        reduction = None if penalty is None else _reduction(message, outputs)
    except Exception as error:  # it is not made for what is made up here
        if is_out_of_memory(error):
            raise
        return None
    if penalty is None:
        raise WrongValue(
            "loss_fn",
            "use the model's parameters by themselves, if at all, so that this term can stay"
            " outside of the clip",
            "a term of parameters and other tensors together",
            "Put it into the model, or use weight_decay of the optimizer.",
        )
    if reduction is None:
        raise WrongValue(
            "loss_fn",
            "be a mean or a sum over examples, so that each can be clipped",
            "one that is neither (class weights in a mean? a loss that compares examples?)",
            "Use reduction='sum', or unit='client'.",
        )
    return {n: g / (size if reduction == "sum" else 1) for n, g in penalty.items()}


def _reduction(message: "GradientMessage", outputs: Tensor) -> str | None:
    """Whether the loss is a "mean" or a "sum" over examples; `None` if it is neither."""
    loss_fn, targets = message.loss.loss_fn, message.targets
    like = (targets.dtype, targets.shape[1:]) if isinstance(targets, Tensor) else None
    try:
        known = _KNOWN.setdefault(loss_fn, {})
    except TypeError:  # it cannot be remembered
        known = {}
    own = loss_fn.named_buffers() if isinstance(loss_fn, nn.Module) else ()  # class weights
    key = (outputs.shape, outputs.dtype, like, *((n, id(b), b._version) for n, b in own))
    if key not in known:
        count = _classes(outputs) if outputs.dim() == 2 else 0  # so that each class has its turn
        count = max(3, min(count, MOST_OUTPUTS // outputs.numel()))
        known[key] = _find_reduction(message, *_made_up(message, outputs, count))
    return known[key]


def _find_reduction(message: "GradientMessage", rows: Tensor, targets: Tensor | None) -> str | None:
    labels = [None] * len(rows) if targets is None else targets.split(1)
    with torch.enable_grad(), _Sources(message, rows, targets) as sources:
        slopes = _slopes(message, rows, targets)
        singles = [_slopes(message, *one) for one in zip(rows.split(1), labels, strict=True)]
    alone = torch.cat(singles)
    if sources.weighted:
        return None
    precision = rows.dtype
    if torch.is_autocast_enabled(rows.device.type):
        precision = torch.get_autocast_dtype(rows.device.type)
    tolerance = max(CLOSE, 4 * torch.finfo(precision).eps)
    if _close(slopes, alone / len(rows), tolerance):
        return "mean"
    return "sum" if _close(slopes, alone, tolerance) else None


def _penalty(message: "GradientMessage", outputs: Tensor) -> Tensors | None:
    """∇_Θ of a loss that is (what is made of data) + (what is made of parameters), or `None`."""
    rows, targets = _made_up(message, outputs, 1)
    own = leaves(message.loss.model)
    with torch.enable_grad(), _Sources(message, rows, targets) as sources:
        value = message.loss.loss_of_outputs(rows, targets)
        if not value.requires_grad:  # asked in here, so that the value itself is looked at, too
            return {}
    if sources.mixed:
        return None
    found = torch.autograd.grad(value, [*own.values()], allow_unused=True)
    return {n: g for n, g in zip(own, found, strict=True) if g is not None}


def ignored_label(message: "GradientMessage", outputs: Tensor | None) -> int | None:
    """The label of a target that the loss ignores; `None` for a loss without such.

    A mean over no targets is 0/0. Whether this loss takes one is asked with made-up outputs.
    """
    targets, index = message.targets, _ignored_index(message)
    if outputs is None or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    rows, made = _made_up(message, outputs, 1)
    assert made is not None
    try:
        value = message.loss.loss_of_outputs(rows, made.fill_(index))
    except Exception as error:  # no such label, or no room
        if is_out_of_memory(error):
            raise
        return None
    return index if bool(value.isnan()) else None


def _ignored_index(message: "GradientMessage") -> int:
    """The label that a loss of PyTorch ignores."""
    loss_fn = message.loss.loss_fn
    options = getattr(loss_fn, "keywords", getattr(loss_fn, "__dict__", {}))
    return int(options.get("ignore_index", -100))


def own_output_gradients(loss: FunctionalLoss, outputs: Tensor, targets: Any) -> Tensor:
    """∇_outputs L_b, where L_b is the loss of example b alone."""
    rows = (outputs,) if targets is None else (outputs, targets)

    def alone(*row: Tensor) -> Tensor:
        return loss.loss_of_outputs(*(one.unsqueeze(0) for one in row), *[None] * (2 - len(row)))

    found: Tensor = each_row(grad(alone), *rows)
    return found


def _made_up(
    message: "GradientMessage", outputs: Tensor, count: int
) -> tuple[Tensor, Tensor | None]:
    """Outputs between 0 and 1, and targets that fit: all classes in turn, or numbers like these."""
    targets = message.targets
    rows = _pattern(outputs.new_empty(count, *outputs.shape[1:])).to(outputs.dtype)
    if not isinstance(targets, Tensor):
        return rows, None
    made = rows.new_empty(count, *targets.shape[1:])
    if targets.is_floating_point():
        return rows, _pattern(made).to(targets)
    classes, index = _classes(outputs), _ignored_index(message)
    labels = torch.arange(made.numel(), device=made.device) % classes
    labels[labels == index] = (index + 1) % classes
    return rows, labels.view(made.shape).to(targets)


def made_up_rows(
    message: "GradientMessage", outputs: Tensor | None, inputs: Tensor
) -> list[Tensor]:
    """An example like these, and its target, if there are any; of private data only the shapes.

    Args:
        message: Whose targets these are.
        outputs: What the model returns for such an example; `None` if that is not known.
        inputs: The examples.
    """
    targets = message.targets
    rows = [made_up_batch(inputs.new_zeros(1, *inputs.shape[1:]))[:1]]
    if isinstance(targets, Tensor):
        made = targets.new_zeros(1, *targets.shape[1:])
        found = None if outputs is None else _made_up(message, outputs, 1)[1]
        rows.append(made if found is None else found)
    return rows


def _classes(outputs: Tensor) -> int:
    """Labels that every loss takes: classes may be the second axis, or the last."""
    return min(outputs.shape[1:], default=2)


def _pattern(like: Tensor) -> Tensor:
    """Numbers between 0.1 and 0.9 that do not repeat, in float64."""
    steps = torch.arange(1, like.numel() + 1, device=like.device, dtype=torch.float64)
    return (0.1 + 0.8 * (0.61803398875 * steps).frac()).view(like.shape)


def _slopes(message: "GradientMessage", rows: Tensor, targets: Tensor | None) -> Tensor:
    """The gradient of the loss with respect to these outputs."""
    outputs = rows.detach().requires_grad_()
    found = derivative(message.loss.loss_of_outputs(outputs, targets), {"outputs": outputs})
    return torch.zeros_like(rows) if found is None else found["outputs"]


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    scale = float(torch.maximum(a.abs().max(), b.abs().max()))
    return torch.allclose(a, b, rtol=0.0, atol=tolerance * scale)


DATA, PARAMETERS = 1, 2
"""What a tensor in a loss is made of; one from elsewhere counts as data."""

JOINING = {"add", "add_", "sub", "sub_", "__rsub__", "stack", "cat"}
"""What may put a term of data and one of parameters together: their sum is still two terms."""

KEEPING = JOINING | {"mul", "div", "neg", "sum", "mean", "clone", "reshape", "view", "flatten"}
KEEPING |= {"squeeze", "unsqueeze", "unbind", "__getitem__", "to", "float", "double"}
"""What may be done to such a sum, with numbers that are neither."""

TELLING_NO_VALUE = {"__get__", "__len__", "size", "dim", "numel", "is_floating_point", "is_complex"}
"""What may be asked of data: `__get__` is `shape`, `dtype`, `device`."""


class _Sources(TorchFunctionMode):
    """Follows what a loss is made of, operation by operation, by the memory that holds it.

    `mixed` says that data and parameters met in another way than in a sum, or may have: through
    operations that are not seen here, or as numbers of Python. `weighted` says that there are class
    weights in a mean.
    """

    def __init__(self, message: "GradientMessage", *made_up: Tensor | None) -> None:
        super().__init__()
        self._kept: list[Tensor] = []  # so that their memory stays their own
        self._kinds: dict[int, int] = {}
        self.mixed = self.weighted = False
        for parameter in message.loss.model.parameters():
            self._mark(parameter, PARAMETERS)
        for tensor in made_up:
            if tensor is not None:
                self._mark(tensor, DATA)

    def _mark(self, tensor: Tensor, kind: int) -> None:
        self._kept.append(tensor)
        place = tensor.untyped_storage().data_ptr()
        self._kinds[place] = self._kinds.get(place, 0) | kind

    def _kind(self, tensor: Tensor) -> int:
        kind = self._kinds.get(tensor.untyped_storage().data_ptr(), DATA)
        self.mixed |= tensor.requires_grad and not kind & PARAMETERS  # made where it is not seen
        return kind

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note what the arguments are made of; the result is made of all of it."""
        kwargs = kwargs or {}
        kinds = [self._kind(tensor) for tensor in tensors_in(args, kwargs)]
        kind = functools.reduce(operator.or_, kinds, 0)
        name = func.__name__
        if kind == DATA | PARAMETERS and name not in JOINING | TELLING_NO_VALUE:
            self.mixed |= name not in KEEPING or sum(map(bool, kinds)) > 1
        if func in DIVIDE_BY_WEIGHTS:
            given = inspect.signature(func).bind(*args, **kwargs).arguments
            mean = given.get("reduction", "mean") == "mean" and given.get("weight") is not None
            self.weighted |= mean and not given["target"].is_floating_point()
        result = func(*args, **kwargs)
        made = tensors_in(result)
        for tensor in made:
            self._mark(tensor, kind)
        self.mixed |= not made and bool(kind & DATA) and name not in TELLING_NO_VALUE
        return result
