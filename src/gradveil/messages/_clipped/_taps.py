"""Watches a model that runs on single examples: which layers it has, and what it may not do."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from inspect import signature
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from gradveil._tensors import Tensors

from .._layers import (
    ConvUse,
    LayerUse,
    LinearUse,
    Recorder,
    ScaleUse,
    convolution,
    settled,
    tensors_in,
)
from .._mixing import refusal
from .._protocol import ModelError
from ._tape import UnbatchableError

PLAIN = ("requires_grad", "shape", "dtype", "device", "is_leaf", "ndim")
"""Attributes of a tensor that tell nothing of its numbers."""


class ForeignError(ModelError):
    """The model's code kept something of one run for another, or wrote into its weights."""


class OtherLayersError(Exception):
    """The model used other layers than it did on a made-up example."""


@dataclass(frozen=True)
class Layout:
    """Which layers of a model have taps, in the order of their use; a function of shapes alone."""

    taps: tuple[Any, ...] = ()
    """For each tap what identifies its layer, and the shape of what leaves it."""
    copies: bool = False
    """Whether operations in place change what enters or leaves a layer."""

    @property
    def names(self) -> frozenset[str]:
        """Parameters whose gradients follow from what passes the taps."""
        return frozenset(name for tap in self.taps for name in tap[1] if name is not None)


class Taps(Recorder):
    """A run of the model on one example: adds ε_l = 0 to what leaves layer l.

    ∂L/∂ε_l is then the signal δ_l that comes back to the layer, and what entered it is noted: the
    gradient of the layer's weight is their product. The user's own weights are refused: the run has
    copies of them, and uses of others would have no part in the gradient.

    Args:
        parameters: Those of the run, or of the first one (`start`).
        opaque: Names to be treated as those of no known layer.
        copies: Whether operations in place are kept away from what passes the taps.
        expected: The taps that the run has to have; `None` to find them.
        strange: The user's own tensors.
    """

    def __init__(
        self,
        parameters: Tensors,
        opaque: frozenset[str] = frozenset(),
        copies: bool = False,
        *,
        expected: tuple[Any, ...] | None = None,
        strange: Iterable[Tensor] = (),
    ) -> None:
        super().__init__(parameters, opaque, copies)
        self._expected, self._shifts = expected, list[Tensor]()
        self.strange = {id(tensor): tensor for tensor in strange}
        self.watching, self._depth = False, 0

    def start(self, parameters: Tensors, shifts: Iterable[Tensor]) -> None:
        """Begin a run with these parameters, and ε_l for each of the taps."""
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._shifts = list(shifts)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let nothing of other runs in, and mark what comes out."""
        with self._at(self._depth + 1):
            return self._seen(func, types, args, kwargs or {})

    @contextmanager
    def _at(self, depth: int) -> Iterator[None]:
        before, self._depth = self._depth, depth
        try:
            yield
        finally:
            self._depth = before

    def _seen(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(self._watched(func, one) for one in args)
        kwargs = {key: self._watched(func, one) for key, one in kwargs.items()}
        given = (*args, *kwargs.values())
        name, taken = getattr(func, "__name__", ""), tensors_in(given)
        asked = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__" and asked in PLAIN:
            trained = asked == "requires_grad" and id(args[0]) in self._names
            return trained or func(*args, **kwargs)
        self._check_taken(taken)
        try:
            _check_options(func, args, kwargs)
            if self.watching:
                _check_operation(func, name, given, taken)
            return super().__torch_function__(func, types, args, kwargs)
        except Exception as error:  # so that code may not go on, as it could for others
            self.failed = self.failed or error
            raise

    def _watched(self, func: Any, one: Any) -> Any:
        """An argument; a function that one of torch will call is watched, too."""
        if not isinstance(func, FunctionType) or not callable(one) or isinstance(one, Tensor):
            return one

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self, self._at(0):
                return one(*args, **kwargs)

        return watched

    failed: Exception | None = None
    """Of an operation, which the model's code may have caught."""

    def check_seen(self, operation: object) -> None:
        """Refuse an operation of a run that is recorded, and that no call brought which was seen.

        It may use weights that then have no part in the gradient. Nor have those of known layers in
        a derivative that the operation is part of.
        """
        inside = torch._C._current_graph_task_id() != -1 or forward_ad._current_level >= 0
        self.differentiates |= self.watching and inside
        if self.watching and not self._depth:
            error = UnbatchableError(f"`{operation}` is called where it is not seen (TorchScript?)")
            self.failed = self.failed or error
            raise error

    def _check_taken(self, taken: list[Tensor]) -> None:
        if any(id(tensor) in self.strange for tensor in taken):
            raise ForeignError(
                "model",
                "use its weights through its own attributes, which are copies while a private"
                " message is computed",
                "that its code reaches the weights themselves, by a reference that it keeps"
                " elsewhere",
                "Use `self.weight`; for a penalty inside of the loss use weight_decay of the"
                " optimizer.",
            )

    def check(self) -> None:
        """Require that the run used the expected layers, and their weights nowhere else."""
        known = {name for use in self.uses for name in use.names}
        changed = self.overwritten and not self.copies
        derived = bool(self.uses) and self.differentiates
        if changed or derived or len(self.uses) != len(self._expected or ()) or self.others & known:
            raise OtherLayersError

    def _enters(self, input: Tensor) -> bool:
        return True

    _convolved = staticmethod(convolution)

    def _add(self, use: LayerUse) -> Tensor:
        place = len(self.uses)
        h = super()._add(use)
        if self._expected is None:
            return h
        if place >= len(self._expected) or self._expected[place] != tap_of(use):
            raise OtherLayersError
        return h + self._shifts[place]


def layout_of(run: Callable[[], Any], parameters: Tensors) -> tuple[Layout, Any]:
    """The layers that a run with these parameters uses once each, and what it returned."""
    taps, result = settled(lambda opaque, copies: Taps(parameters, opaque, copies), run)
    return Layout(tuple(tap_of(use) for use in taps.uses), taps.copies), result


def tap_of(use: LayerUse) -> Any:
    """What identifies a layer; the last two are type and shape of what leaves it."""
    own = (getattr(use, name, None) for name in ("geometry", "axis", "padding"))
    return type(use), (use.weight, use.bias), use.shape, repr(tuple(own)), use.h.dtype, use.h.shape


def stacked(use: LayerUse, a: Tensor, signal: Tensor) -> LayerUse:
    """The same layer for all examples: what entered it and came back for each, on the first axis.

    Inside, an example is a batch of one, which may be on any axis; all axes between the examples
    and the features of a linear layer are positions.
    """
    whole = copy(use)
    if isinstance(use, LinearUse):
        a, signal = (t.flatten(1, -2) for t in (a, signal))
        if a.shape[1] == 1:
            a, signal = a.squeeze(1), signal.squeeze(1)
    elif isinstance(use, ConvUse):
        a, signal = a.squeeze(1), signal.squeeze(1)
    elif isinstance(use, ScaleUse):
        assert isinstance(whole, ScaleUse)
        whole.axis = use.axis + 1
    whole.a, whole.h, whole.signal = a, signal, signal
    return whole


def _check_operation(func: Any, name: str, given: tuple[Any, ...], taken: list[Tensor]) -> None:
    """Allow what does the same for all examples, and can be seen.

    Inside of functions and tensors that are not torch's, nothing is watched.
    """
    if isinstance(func, FunctionType) and not func.__module__.startswith("torch"):
        raise UnbatchableError(f"`{func.__name__}` is no function of torch itself")
    if name in ("__repr__", "__format__"):
        raise UnbatchableError("the model's code looks at values")
    if _adds_hook(func, name):
        raise UnbatchableError("the model's code adds hooks to the backward pass")
    if any(
        hasattr(type(one), "__torch_function__") and not isinstance(one, Tensor) for one in given
    ):
        raise UnbatchableError("an object of the model's own answers for an operation")
    if any(type(tensor) not in (Tensor, nn.Parameter) for tensor in taken):
        raise UnbatchableError("the model has tensors of a class of its own")


def _check_options(func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    """Refuse statistics of a batch, and rows that are rescaled as they are read."""
    if func is F.batch_norm:
        given = signature(func).bind(*args, **kwargs).arguments
        if given.get("training", False):
            raise refusal(
                "that batch_norm(training=True) mixes the examples of a batch",
                "Use `model.eval()`, or group_norm in its place.",
            )
    if func in (F.embedding, F.embedding_bag):
        given = signature(func).bind(*args, **kwargs).arguments
        if given.get("max_norm") is not None:
            raise refusal(
                f"{func.__name__}(max_norm=...), which rescales the rows that an example reads",
                "Leave max_norm out, and limit the rows after the optimizer's step.",
            )


def _adds_hook(func: Any, name: str) -> bool:
    """Whether code is to run in the backward pass, where nothing is watched."""
    if name == "__get__":
        return getattr(getattr(func, "__self__", None), "__name__", "") == "grad_fn"
    return name in ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
