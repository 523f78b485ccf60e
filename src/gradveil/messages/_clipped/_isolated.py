"""The gradient of each example, computed from that example alone.

Where a guarantee for each example rests on it, no test of a model is enough: what mixes examples
only sometimes is not seen by a test. So the model never gets two examples. Its code runs once, on
one example that stands for all of them (`torch.vmap`), forward and backward. Where torch cannot do
that (Python that looks at values, hooks, operations without a rule for batches) the examples are
run one after the other, each in a process of its own.

What a run could learn of others in another way is taken from it:

| way | at once | one by one |
| --- | --- | --- |
| attributes of the module | copies in each run | copies |
| the user's own weights and buffers | an error; put back | an error |
| globals, closures, files in memory | tensors of another run are an error | end with the process |
| operations that torch's modes do not see (TorchScript) | one by one | |
| an operation that fails for some example | one by one, even if the code catches it | |
| random numbers of torch | new for each example, from a state that nobody knows | the same |
| of `random`, `numpy.random` | one by one | new for each example, too |
| of a generator of the code's own | of torch: one by one | the same for each example |
| parts, where memory is short | operations of the first are recorded, and repeated | |

What is left is code that is made to get around this: that writes numbers of an example to a disk or
into memory that processes share, reads memory that was never written, or takes torch's own wrappers
apart. Protected are the rows of inputs and targets, not data that a loss holds by itself. Weights
that a server sends are not code.
"""

# ruff: noqa: NPY002  -- numpy's global generator is kept from private code, not drawn from
import logging
import pickle
import random
import secrets
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradveil._checks import WrongValue, first_line
from gradveil._memory import is_out_of_memory
from gradveil._secure import fill_from_system
from gradveil._typing import Tensors

from .._explain import ModelError
from .._functional import (
    FunctionalLoss,
    apart,
    derivative,
    global_generator,
    leaves,
    one_thread,
    unwritten,
)
from .._gradient import GradientMessage
from .._layers import LayerUse
from .._mixing import check_layers, check_outputs, made_up_batch, rows_are_independent
from ._metric import zeros
from ._process import CAN_FORK, Children
from ._taps import (
    ForeignError,
    Layout,
    OtherLayersError,
    Taps,
    UnbatchableError,
    layout_of,
    stacked,
)

ROOM = 2**23
"""How many numbers of examples × parameters are made at a time."""

_log = logging.getLogger("gradveil")


class Part(NamedTuple):
    """Gradients of some examples, each by itself; the first axis of everything is the examples'."""

    uses: list[LayerUse]
    """Layers whose gradients are products of what entered them and came back."""
    others: Tensors
    """The gradients of all other parameters."""
    losses: Tensor


@dataclass
class Known:
    """What is known of a model for inputs of one shape. No private value has a part in it."""

    layout: Layout
    outputs: Tensor | None
    """What it returns for a made-up example; `None` if it fails on that."""
    mixes: bool = False
    """Whether made-up examples had other outputs beside others."""
    batches: bool = True
    """Whether its code runs on all examples at once."""


_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Known]] = WeakKeyDictionary()


def isolated(
    message: GradientMessage, inputs: Tensor, seed: int | None = None, *, taps: bool = True
) -> Iterator[Part]:
    """The gradients of all examples, one or more, in parts.

    Args:
        message: Whose targets, if there are any, have one row for each example.
        inputs: The examples.
        seed: For what the model draws at random, in simulations; `None` for what nobody knows.
        taps: Whether gradients of layers may come as products.
    """
    known = known_of(message, inputs)
    parameters = {name: p.clone() for name, p in message.parameters.items()}
    targets = message.targets  # a copy of which the loss may write into
    message = message.of(targets.clone() if isinstance(targets, Tensor) else targets)
    inputs = inputs.detach().clone()
    layouts = [known.layout, Layout()] if taps else [Layout()]
    reason = foreign = _foreign_mode()
    with _Randomness(seed, inputs.device) as randomness, unwritten(message.loss.model):
        for layout in layouts if known.batches and reason is None else ():
            try:
                parts = _at_once(message, parameters, inputs, layout)
                randomness.check()
            except OtherLayersError:  # its code does not always do the same: no taps then
                known.layout = Layout()
                randomness.renew()
                continue
            except Exception as error:
                if is_out_of_memory(error) or isinstance(error, ForeignError):
                    raise
                reason = error
                break
            try:
                yield from parts
            except Exception as error:  # of an operation that is repeated, for some example
                if is_out_of_memory(error):
                    raise
                known.batches = False
                raise UnbatchableError(first_line(error)) from error
            _check_unwritten(parameters, message.parameters)
            return
        _check_can_fork(inputs, reason)
        yield from _one_by_one(message, parameters, inputs, randomness)
    if reason is not None:  # not remembered of a model that fails one by one, too
        known.batches &= reason is foreign
        _log.warning(
            "Examples are clipped one by one, each in a process of its own, which is slow: %s.",
            first_line(reason),
        )


def _foreign_mode() -> Exception | None:
    """Why examples cannot be run at once: a mode that is on here would see all of them."""
    modes: list[object] = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    strange = [type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)]
    return UnbatchableError(f"the mode `{strange[0]}` of torch is on") if strange else None


def _check_can_fork(inputs: Tensor, reason: Exception | None) -> None:
    if not CAN_FORK or inputs.device.type != "cpu":
        where = inputs.device if CAN_FORK else "a system without `os.fork`"
        why = first_line(reason) if reason else "its code looks at values"
        raise ModelError(
            "model",
            "run on all examples at once (torch.vmap), or on the processor of a system that can"
            " fork",
            f"a model on {where}, and that {why}",
            "Replace that operation, or use unit='client'.",
        )


def example_gradients(message: GradientMessage, inputs: Tensor) -> Iterator[Tensors]:
    """g_b, the gradient of the loss of example b alone, for some examples at a time, stacked.

    >>> import torch
    >>> message = GradientMessage(torch.nn.Linear(2, 1, bias=False), lambda o, _: o.mean(), None)
    >>> pair = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> [g["weight"].tolist() for g in example_gradients(message, pair)]
    [[[[1.0, 2.0]], [[3.0, 4.0]]]]
    """
    check_targets(message.targets, len(inputs))
    check_layers(message.loss.model)
    for part in isolated(message, inputs, taps=False):
        yield part.others


def check_targets(targets: Any, examples: int) -> None:
    """Require one row of targets for each example, or none at all."""
    if targets is None or (isinstance(targets, Tensor) and targets.shape[:1] == (examples,)):
        return
    found = f"shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else str(type(targets))
    expected = f"be a tensor with one row for each of the {examples} examples, so that each has a"
    raise WrongValue("targets", f"{expected} loss of its own", found)


def known_of(message: GradientMessage, inputs: Tensor) -> Known:
    """What is known of the model of a message for such inputs, found out if need be."""
    model = message.loss.model
    mode = tuple(module.training for module in model.modules())
    key = (inputs.shape[1:], inputs.dtype, mode, tuple(message.parameters))
    found = _KNOWN.setdefault(model, {})
    if key not in found:
        found[key] = _look(message, inputs.new_zeros(1, *inputs.shape[1:]))
    return found[key]


def _look(message: GradientMessage, made_up: Tensor) -> Known:
    loss = message.loss.secluded()
    own = {name: p.clone().requires_grad_() for name, p in message.parameters.items()}
    try:
        with (
            _Randomness(None, made_up.device),
            unwritten(message.loss.model),
            apart(loss.model),
        ):
            layout, outputs = layout_of(lambda: loss.outputs(own, made_up), own)
            check_outputs(outputs, 1)
            apart_from_others = rows_are_independent(loss, own, made_up_batch(made_up))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return Known(Layout(), None)
    return Known(layout, outputs.detach(), apart_from_others is False)


def _at_once(
    message: GradientMessage, parameters: Tensors, inputs: Tensor, layout: Layout
) -> Iterator[Part]:
    """All examples in one run of the model's code, which has ended when this returns.

    Where there is no room for all gradients the operations of that run are recorded, and repeated
    for further examples: no state of Python then tells one part from another.
    """
    run = _Batched(message, parameters, layout)
    size = max(1, ROOM // max(1, run.entries))
    x, targets = inputs, message.targets
    if len(x) <= size:
        return iter([run.part(run(x, targets), len(x))])
    labels = [None] * len(x.split(size)) if targets is None else targets.split(size)
    rows = [*zip(x.split(size), labels, strict=True)]
    program = make_fx(run)(*rows[0])
    return (
        run.part(program(_filled(part, size), _filled(label, size)), len(part))
        for part, label in rows
    )


class _Batched:
    """The gradients of the losses of single examples, by one run of the model's code."""

    def __init__(self, message: GradientMessage, parameters: Tensors, layout: Layout) -> None:
        self._loss, self._layout = message.loss.secluded(), layout
        self._fixed = {n: p for n, p in parameters.items() if n in layout.names}
        self._free = {n: p for n, p in parameters.items() if n not in layout.names}
        like = next(iter(parameters.values()))
        self._shifts = [like.new_zeros(tap[-1], dtype=tap[-2]) for tap in layout.taps]
        self._strange = [*message.loss.model.parameters(), *message.loss.model.buffers()]
        self._uses: list[LayerUse] = []

    @property
    def entries(self) -> int:
        """Of the parameters whose gradients are made for each example."""
        return sum(p.numel() for p in self._free.values())

    def __call__(self, inputs: Tensor, targets: Tensor | None) -> Any:
        """Gradients and signals, with losses and what entered the layers, for each example."""
        rows = (None, None, 0, None if targets is None else 0)
        run = vmap(
            grad_and_value(self._alone, argnums=(0, 1), has_aux=True), rows, randomness="different"
        )
        with apart(self._loss.model):
            self._taps = Taps(
                {},
                frozenset(self._free),
                self._layout.copies,
                expected=self._layout.taps,
                strange=[*self._strange, *leaves(self._loss.model).values()],
                generators=_generators(inputs.device),
            )
            with self._taps as taps:
                found = run(self._free, self._shifts, inputs, targets)
        if taps.failed is not None:
            raise UnbatchableError(f"an operation failed: {first_line(taps.failed)}")
        return found

    def part(self, found: Any, count: int) -> Part:
        """What a run gave, of its first examples: the others fill it up."""
        (others, signals), (losses, entered) = found
        uses = [
            stacked(use, a[:count], signal[:count])
            for use, a, signal in zip(self._uses, entered, signals, strict=True)
        ]
        return Part(uses, {n: g[:count] for n, g in others.items()}, losses[:count])

    def _alone(
        self, free: Tensors, shifts: list[Tensor], example: Tensor, target: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss of one example, and what entered the layers with taps."""
        parameters = {**self._fixed, **free}
        self._taps.start(parameters, shifts)
        with self._taps.seeing_all():
            value = _loss_alone(self._loss, parameters, example, target, self._taps)
        self._taps.check()
        self._uses = self._taps.uses
        return value, [use.a for use in self._uses]


def _loss_alone(
    loss: FunctionalLoss,
    parameters: Tensors,
    example: Tensor,
    target: Tensor | None,
    taps: Taps,
) -> Tensor:
    outputs = loss.outputs(parameters, example.unsqueeze(0))
    check_outputs(outputs, 1)
    if loss.may_use_weights:
        taps.strange = {}
    try:
        with warnings.catch_warnings():  # that each output would be compared with each target
            warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
            return loss.loss_of_outputs(outputs, None if target is None else target.unsqueeze(0))
    except (RuntimeError, ValueError, TypeError, IndexError, UserWarning) as error:
        if is_out_of_memory(error):
            raise
        expected = "take a single example, so that each can be clipped"
        found = f"that it fails with `{first_line(error)}`"
        advice = "Use a mean or a sum over examples, or unit='client'."
        raise WrongValue("loss_fn", expected, found, advice) from error


def _one_by_one(
    message: GradientMessage, parameters: Tensors, inputs: Tensor, randomness: "_Randomness"
) -> Iterator[Part]:
    """Plain autograd on one example after the other, each in a process that ends with it."""
    targets = message.targets
    children = Children({**parameters, _LOSS: inputs.new_empty((), dtype=torch.float64)})
    for place, example in enumerate(inputs):

        def one(place: int = place, example: Tensor = example) -> Tensors:
            randomness.renew(place)
            return _one(message, parameters, example, None if targets is None else targets[place])

        found = {name: value.unsqueeze(0) for name, value in children.run(one).items()}
        yield Part([], found, found.pop(_LOSS))


_LOSS = ""
"""The name of the loss beside those of the parameters."""


def _one(
    message: GradientMessage, parameters: Tensors, example: Tensor, target: Tensor | None
) -> Tensors:
    """The gradient and the loss of one example."""
    loss = message.loss.secluded()
    loss.may_use_weights = False  # which here would be used past the clip
    own = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    label = None if target is None else target.clone()
    strange = [*message.loss.model.parameters(), *message.loss.model.buffers()]
    with torch.enable_grad(), apart(loss.model):
        strange += leaves(loss.model).values()
        with Taps(own, frozenset(own), strange=strange) as taps:
            value = _loss_alone(loss, own, example.clone(), label, taps)
            gradients = derivative(value, own) or zeros(own)
    _check_unwritten(own, parameters)
    return {**gradients, _LOSS: value.detach()}


def _filled(rows: Tensor | None, size: int) -> Tensor | None:
    """As many rows as a recorded run takes: the first stands in for those that are missing."""
    if rows is None or len(rows) == size:
        return rows
    return torch.cat([rows, rows[:1].expand(size - len(rows), *rows.shape[1:])])


def _check_unwritten(now: Tensors, before: Tensors) -> None:
    for name, p in before.items():
        if not torch.equal(now[name], p):
            expected = "leave its weights as they are when it is called"
            found, advice = f"that its code wrote into `{name}`", "after the optimizer's step."
            raise ForeignError("model", expected, found, f"Do that {advice}")


class _Randomness:
    """The states of all generators that a model's code may draw from: its own inside of `with`.

    Args:
        seed: For simulations; `None` for what nobody knows.
        device: Where the model is.
    """

    def __init__(self, seed: int | None, device: torch.device) -> None:
        self._seed, self._generators = seed, _generators(device)

    def __enter__(self) -> "_Randomness":
        self._lock = one_thread()
        self._lock.acquire()
        states = [generator.get_state() for generator in self._generators]
        self._before = states, random.getstate(), np.random.get_state()
        self.renew()
        return self

    def __exit__(self, *_: object) -> None:
        states, python, of_numpy = self._before
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
        random.setstate(python)
        np.random.set_state(of_numpy)
        self._lock.release()

    def renew(self, place: int = 0) -> None:
        """Begin a run, of the example in this place where each has its own."""
        random.seed(secrets.randbits(256) if self._seed is None else self._seed)
        np.random.seed(random.getrandbits(32))
        seed = None if self._seed is None else (self._seed + 1_000_003 * place) % 2**63
        for generator in self._generators:
            if seed is None and generator.device.type == "cpu":
                fill_from_system(generator)
            else:
                generator.manual_seed(secrets.randbits(63) if seed is None else seed)
        self._python = _python_states()

    def check(self) -> None:
        """Require that only torch's generators were drawn from: others give all examples one."""
        if _python_states() != self._python:
            raise UnbatchableError("the model's code draws from `random` or `numpy.random`")


def _python_states() -> tuple[Any, ...]:
    """Those of `random` and `numpy.random`."""
    return random.getstate(), pickle.dumps(np.random.get_state())


def _generators(device: torch.device) -> list[torch.Generator]:
    """What the operations of torch draw from."""
    return [*dict.fromkeys((torch.default_generator, global_generator(device)))]
