"""The gradient of each example, computed from that example alone.

Where a guarantee for each example rests on it, no test of a model is enough: what mixes examples
only sometimes is not seen by a test. So the model's code never meets a private example. It runs
once a step, on a made-up one, forward and backward; the operations of that run (`Tape`) are then
played on the private ones. Where they cannot be recorded (Python that looks at values, hooks,
TorchScript) the examples are run one after the other, each in a process of its own.

What a run could learn of others in another way is taken from it:

| way | recorded, and played | one by one |
| --- | --- | --- |
| attributes of the model's and the loss's modules | copies in each run | copies |
| the user's own weights and buffers | an error; put back | an error |
| globals, closures, threads | code meets made-up numbers only | end with the process |
| how often code runs | once a step, whatever the data | end with the process |
| an operation that fails for some example | that one alone: one by one | |
| operations whose rules for batches may mix | played for each example alone | |
| random numbers of torch | new for each example, from a state that nobody knows | the same |
| of `random`, `numpy.random` | one by one | new for each example, too |
| of a generator of its own | of torch: one by one; else the same in every step | the same |
| how far an open file was read | code meets made-up numbers only | each opens it again (Linux) |
| memory of torch that was never written | 0 | filled |

What is left is code that is made to get around this: that writes numbers of an example to a disk or
into memory that processes share, computes with process ids, clocks or other processes, reads memory
that numpy never wrote, or has put its own kernels in the place of torch's. Protected are the rows
of inputs and targets, not their shapes, and not data that a loss holds by itself. Weights that a
server sends are not code.
"""

# ruff: noqa: NPY002  -- numpy's global generator is kept from private code, not drawn from
import logging
import pickle
import random
import secrets
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gradveil._checks import WrongValue, first_line, is_out_of_memory
from gradveil._secure import fill_from_system
from gradveil._tensors import Tensors

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
from .._mixing import (
    check_layers,
    check_outputs,
    made_up_batch,
    made_up_rows,
    rows_are_independent,
)
from .._protocol import ModelError
from ._metric import zeros
from ._process import CAN_FORK, in_a_process
from ._tape import Tape, UnbatchableError
from ._taps import (
    ForeignError,
    Layout,
    OtherLayersError,
    Taps,
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
    told: bool = False
    """Whether it was logged that examples go one by one."""


_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Known]] = WeakKeyDictionary()


def isolated(
    message: GradientMessage,
    inputs: Tensor,
    seed: int | None = None,
    *,
    taps: bool = True,
    kept: dict[Any, "Program"] | None = None,
) -> Iterator[Part]:
    """The gradients of all examples, in parts.

    Args:
        message: Whose targets, if there are any, have one row for each example.
        inputs: The examples; for none of them the model's code runs as it does for some.
        seed: For what the model draws at random, in simulations; `None` for what nobody knows.
        taps: Whether gradients of layers may come as products.
        kept: What is known of the model's code within one step, filled in here.
    """
    _check_no_modes()
    known, kept = known_of(message, inputs), {} if kept is None else kept
    inputs, key = inputs.detach(), shapes_of(message, inputs)
    with _Randomness(seed, inputs.device) as randomness, unwritten(message.loss.model):
        if key not in kept:
            kept[key] = _program(
                message, known if taps else replace(known, layout=Layout()), inputs
            )
            _check_no_modes()  # that the model's code entered, and did not leave
        program, reason = kept[key]
        randomness.renew()
        with _unwatched():
            if program is not None:
                yield from _at_once(program, message, inputs, randomness)
                return
            assert reason is not None
            _check_can_fork(inputs, reason)
            parameters = message.parameters  # asking for them runs code of the model's
            for place in range(len(inputs)):
                yield _one_by_one(message, parameters, inputs, place, randomness)
    if not known.told:
        known.told = True
        _log.warning(
            "Examples are clipped one by one, each in a process of its own, which is slow: %s.",
            first_line(reason),
        )


def shapes_of(message: GradientMessage, inputs: Tensor) -> tuple[Any, ...]:
    """What is public of a batch: shapes and types of an example and of its target."""
    rows = [one for one in (inputs, message.targets) if isinstance(one, Tensor)]
    return tuple((row.shape[1:], row.dtype) for row in rows)


def _check_no_modes() -> None:
    """Require that no mode of torch is on: it would see all examples, one after the other."""
    modes: list[object] = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    strange = [type(mode).__name__ for mode in modes if type(mode) is not DeviceContext]
    if strange:
        raise ModelError(
            "model",
            "run without a mode of torch around it, which would see what all examples do",
            f"the mode `{strange[0]}`",
            "Compute private messages outside of it, and let the model leave those it enters.",
        )


@contextmanager
def _unwatched() -> Iterator[None]:
    """Without what Python calls for each line and function, which would count the examples."""
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])


def _check_can_fork(inputs: Tensor, reason: Exception) -> None:
    if not CAN_FORK or inputs.device.type != "cpu":
        where = inputs.device if CAN_FORK else "a system without `os.fork`"
        raise ModelError(
            "model",
            "run on all examples at once (torch.vmap), or on the processor of a system that can"
            " fork",
            f"a model on {where}, and that {first_line(reason)}",
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


Program = tuple["tuple[_Batched, Tape] | None", Exception | None]
"""What the model's code does with an example; or `None`, and why that cannot be said."""


def _program(message: GradientMessage, known: Known, inputs: Tensor) -> Program:
    """What the model's code does, from a run on one made-up example.

    Neither that run nor its end depends on private data, and nothing else runs in this process.
    """
    rows = made_up_rows(message, known.outputs, inputs)
    for layout in (known.layout, Layout()):
        before = _python_states()
        run = _Batched(message, layout)
        try:
            with apart(run.model, message.loss.loss_fn):
                tape = Tape(run, rows, run.check_seen)
            if _python_states() != before:  # such draws would be the same for all examples
                raise UnbatchableError("the model's code draws from `random` or `numpy.random`")
            return (run, tape), None
        except OtherLayersError:  # its code does not always do the same: no taps then
            known.layout = Layout()
        except Exception as error:
            if is_out_of_memory(error) or isinstance(error, ForeignError):
                raise
            reason = error
            break
    return None, reason


def _at_once(
    program: "tuple[_Batched, Tape]",
    message: GradientMessage,
    inputs: Tensor,
    randomness: "_Randomness",
) -> Iterator[Part]:
    """The recorded operations, played on as many examples at a time as there is room for.

    An operation that fails for some example, or that torch cannot batch, is played for each alone;
    an example for which it fails then goes to the model's code itself, in a process of its own.
    """
    run, tape = program
    size, parameters = max(1, ROOM // max(1, run.entries)), message.parameters
    rows = [inputs] if message.targets is None else [inputs, message.targets]
    for start in range(0, len(inputs), size):
        part = [row[start : start + size] for row in rows]
        try:
            yield run.part(tape.each(*part))
            continue
        except Exception as error:
            if is_out_of_memory(error):
                raise
        for place in range(start, start + len(part[0])):
            randomness.renew(place)
            try:
                found = run.part(tape(*(row[place : place + 1] for row in rows)))
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                _check_can_fork(inputs, error)
                found = _one_by_one(message, parameters, inputs, place, randomness)
            yield found


class _Batched:
    """The gradients of the losses of single examples, by one run of the model's code."""

    def __init__(self, message: GradientMessage, layout: Layout) -> None:
        self._loss, self._layout = message.loss.secluded(), layout
        self.model = self._loss.model
        parameters = message.parameters
        self._fixed = {n: p for n, p in parameters.items() if n in layout.names}
        self._free = {n: p for n, p in parameters.items() if n not in layout.names}
        like = next(iter(parameters.values()))
        self._shifts = [like.new_zeros(tap[-1], dtype=tap[-2]) for tap in layout.taps]
        self._strange = [*message.loss.model.parameters(), *message.loss.model.buffers()]
        self._uses: list[LayerUse] = []
        self._taps: Taps | None = None

    def check_seen(self, operation: object) -> None:
        """Require that an operation inside of the model's code comes from a call that was seen."""
        if self._taps is not None:
            self._taps.check_seen(operation)

    @property
    def entries(self) -> int:
        """Of the parameters whose gradients are made for each example."""
        return sum(p.numel() for p in self._free.values())

    def __call__(self, inputs: Tensor, targets: Tensor | None = None) -> Any:
        """Gradients and signals, with losses and what entered the layers, for each example."""
        rows = (None, None, 0, None if targets is None else 0)
        run = vmap(
            grad_and_value(self._alone, argnums=(0, 1), has_aux=True), rows, randomness="different"
        )
        self._taps = Taps(
            {},
            frozenset(self._free),
            self._layout.copies,
            expected=self._layout.taps,
            strange=[*self._strange, *leaves(self._loss.model).values()],
        )
        with self._taps as taps:
            found = run(self._free, self._shifts, inputs, targets)
        if taps.failed is not None:
            raise UnbatchableError(f"an operation failed: {first_line(taps.failed)}")
        return found

    def part(self, found: Any) -> Part:
        """What a run gave."""
        (others, signals), (losses, entered) = found
        uses = [stacked(*use) for use in zip(self._uses, entered, signals, strict=True)]
        return Part(uses, others, losses)

    def _alone(
        self, free: Tensors, shifts: list[Tensor], example: Tensor, target: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss of one example, and what entered the layers with taps."""
        parameters, taps = {**self._fixed, **free}, self._taps
        assert taps is not None
        taps.start(parameters, shifts)
        taps.watching = True
        value = _loss_alone(self._loss, parameters, example, target, taps)
        taps.watching = False
        taps.check()
        self._uses = taps.uses
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
    message: GradientMessage,
    parameters: Tensors,
    inputs: Tensor,
    place: int,
    randomness: "_Randomness",
) -> Part:
    """Plain autograd on one example, in a process that ends with it."""
    targets = message.targets

    def one() -> Tensors:
        randomness.renew(place)
        torch.set_deterministic_debug_mode("warn")  # fills memory that is new
        target = None if targets is None else targets[place]
        return _one(message, parameters, inputs[place], target)

    like = {**parameters, _LOSS: inputs.new_empty((), dtype=torch.float64)}
    found = {name: value.unsqueeze(0) for name, value in in_a_process(one, like).items()}
    return Part([], found, found.pop(_LOSS))


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
    with torch.enable_grad(), apart(loss.model, loss.loss_fn):
        strange += leaves(loss.model).values()
        with Taps(own, frozenset(own), strange=strange) as taps:
            value = _loss_alone(loss, own, example.clone(), label, taps)
            gradients = derivative(value, own) or zeros(own)
    _check_unwritten(own, parameters)
    return {**gradients, _LOSS: value.detach()}


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
        with ExitStack() as undone:  # also where Ctrl-C comes in between
            undone.enter_context(one_thread())  # first: another's states are not the user's
            undone.callback(np.random.set_state, np.random.get_state())
            undone.callback(random.setstate, random.getstate())
            for generator in self._generators:
                undone.callback(generator.set_state, generator.get_state())
            self.renew()
            self._undone = undone.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undone.close()

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


def _python_states() -> tuple[Any, ...]:
    """Those of `random` and `numpy.random`."""
    return random.getstate(), pickle.dumps(np.random.get_state())


def _generators(device: torch.device) -> list[torch.Generator]:
    """What the operations of torch draw from."""
    return [*dict.fromkeys((torch.default_generator, global_generator(device)))]
