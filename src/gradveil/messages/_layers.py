"""The layers of a model as it runs: their inputs, outputs and how often they are used."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from gradveil._tensors import Tensors

Geometry = tuple[Any, ...]


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """x ∗ w + b; geometry: stride, padding, dilation, transposed, output padding, groups."""
    result: Tensor = torch.convolution(x, weight, bias, *geometry)  # type: ignore[call-overload]
    return result


class ConstantConv(torch.autograd.Function):
    """x ↦ x ∗ w + b."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
    ) -> Tensor:
        """The convolution."""
        ctx.save_for_backward(weight)
        ctx.geometry, ctx.size = geometry, x.shape
        return convolution(x, weight, bias, geometry)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """Its transpose."""
        (weight,) = ctx.saved_tensors
        return _Transpose.apply(gradient, weight, ctx.size, ctx.geometry), None, None, None


class _Transpose(torch.autograd.Function):
    """y ↦ wᵀ ∗ y."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor, size: torch.Size, geometry: Geometry
    ) -> Tensor:
        """The convolution's gradient with respect to its input."""
        ctx.save_for_backward(weight)
        ctx.geometry = geometry
        return _conv_backward(y, y.new_empty(1).expand(size), weight, geometry, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        """The transpose of the transpose."""
        (weight,) = ctx.saved_tensors
        return ConstantConv.apply(gradient, weight, None, ctx.geometry), None, None, None


def _conv_backward(y: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, which: int) -> Tensor:
    """The gradient of a convolution with respect to its input (0) or its weight (1)."""
    wanted = [which == 0, which == 1, False]
    found: list[Tensor]
    found = torch.ops.aten.convolution_backward(y, x, weight, None, *geometry, wanted)
    return found[which]


@dataclass(eq=False)
class LayerUse:
    """One use of a weight: output h from input a, with the signal δ = ∂L/∂h.

    The gradient of the weight is Σ_b Σ_p δ_bp a_bpᵀ over examples b and positions p.
    """

    weight: str
    bias: str | None
    shape: torch.Size
    """Of the weight."""
    a: Tensor
    h: Tensor
    signal: Tensor = field(init=False)
    """δ, a constant."""
    input_signal: Tensor = field(init=False)
    """∂L/∂a, with the graph that the sweeps go through."""

    has_positions = True
    """Whether the weight meets each example more than once."""

    @property
    def names(self) -> list[str]:
        """Of the weight, and of the bias if there is one."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def products(self, signal: Tensor, a: Tensor) -> Tensor:
        """Σ_p δ_bp a_bpᵀ for each example: shape (examples, *weight)."""
        raise NotImplementedError

    def sums(self, signal: Tensor) -> Tensor:
        """Σ_p δ_bp for each example: shape (examples, *bias)."""
        raise NotImplementedError

    def gradient(self) -> Tensors:
        """The plain gradient of the layer's parameters."""
        gradients = {self.weight: self.weight_gradient()}
        if self.bias is not None:
            gradients[self.bias] = self.sums(self.signal).sum(0)
        return gradients

    def weight_gradient(self) -> Tensor:
        """Of all examples together."""
        return self.products(self.signal, self.a.detach()).sum(0)


@dataclass(eq=False)
class LinearUse(LayerUse):
    """h = a Wᵀ + b, with any number of axes between the examples and the features."""

    channels: int | None = None
    """Of the feature maps that were flattened into the input, where there were any."""

    @property
    def has_positions(self) -> bool:  # type: ignore[override]
        """Not for a matrix applied once per example: there the squares contract."""
        return self.a.dim() > 2

    def products(self, signal: Tensor, a: Tensor) -> Tensor:
        """δᵀ a for each example."""
        signal, a = (t.reshape(len(t), -1, t.shape[-1]) for t in (signal, a))
        return signal.transpose(1, 2) @ a

    def sums(self, signal: Tensor) -> Tensor:
        """Over all axes but the first and the last."""
        return signal.flatten(1, -2).sum(1) if signal.dim() > 2 else signal

    def weight_gradient(self) -> Tensor:
        """One product of matrices."""
        return self.signal.flatten(0, -2).T @ self.a.detach().flatten(0, -2)


@dataclass(eq=False)
class ConvUse(LayerUse):
    """A convolution."""

    geometry: Geometry = ()

    def products(self, signal: Tensor, a: Tensor) -> Tensor:
        """The weight gradient of each example: one grouped convolution, an example a group."""
        examples = len(a)
        *spacing, groups = self.geometry
        weight = a.new_empty(1).expand(examples * self.shape[0], *self.shape[1:])
        signal, a = (t.reshape(1, -1, *t.shape[2:]) for t in (signal, a))
        gradients = _conv_backward(signal, a, weight, (*spacing, examples * groups), 1)
        return gradients.view(examples, *self.shape)

    def sums(self, signal: Tensor) -> Tensor:
        """Over the positions."""
        return signal.flatten(2).sum(2)

    def weight_gradient(self) -> Tensor:
        """One convolution."""
        weight = self.a.new_empty(1).expand(self.shape)
        return _conv_backward(self.signal, self.a.detach(), weight, self.geometry, 1)


@dataclass(eq=False)
class ScaleUse(LayerUse):
    """h = a ⊙ w + b along one axis: what follows the normalisation in a normalising layer."""

    axis: int = 1

    def products(self, signal: Tensor, a: Tensor) -> Tensor:
        """Σ_p δ_bp a_bp for each channel."""
        return self.sums(signal * a)

    def sums(self, signal: Tensor) -> Tensor:
        """Over all axes but the examples and the channels."""
        others = [i for i in range(1, signal.dim()) if i != self.axis]
        return signal.sum(others) if others else signal


@dataclass(eq=False)
class EmbeddingUse(LayerUse):
    """h_p = w[a_p]: rows of a table, at the indices a."""

    padding: int | None = None
    """The row that gets no gradient."""

    def own_signal(self, signal: Tensor) -> Tensor:
        """δ of shape (examples, positions, width), 0 where the padding was read."""
        if self.padding is not None:
            signal = signal.masked_fill((self.a == self.padding).unsqueeze(-1), 0.0)
        return signal.reshape(len(signal), -1, self.shape[-1])

    def weight_gradient(self) -> Tensor:
        """Rows of the table, at the indices."""
        rows = self.own_signal(self.signal).flatten(0, 1)
        return rows.new_zeros(self.shape).index_add_(0, self.a.flatten(), rows)


_METHODS: dict[Any, str] = {
    F.linear: "_linear",
    F.conv1d: "_conv",
    F.conv2d: "_conv",
    F.conv3d: "_conv",
    F.embedding: "_embedding",
    F.batch_norm: "_batch_norm",
    F.layer_norm: "_layer_norm",
    F.group_norm: "_group_norm",
}
"""The layers that a recorder knows."""

DERIVATIVES = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
"""What takes derivatives; all others of torch call these, or are in forward mode."""


class Recorder(TorchFunctionMode):
    """Notes each use of a parameter in a layer it knows; all other parameters land in `others`.

    Known are linear layers, convolutions, embeddings of what is differentiated, and the scale and
    shift of batch (in eval mode), layer and group normalisation, wherever a model calls them:
    functions are watched, not modules. In a known layer parameters act as constants, so that no
    weight gradients are computed on the way. Where the model or the loss differentiates by itself,
    that would leave out what a weight has to do with such a derivative: then no layer is known.

    Args:
        parameters: Leaves, by name.
        opaque: Names to be treated as unknown.
        copies: Whether the inputs and outputs of known layers are copies, which operations in
            place do not reach.
        examples: How many there are on the first axis of all that layers take and give; `None`
            where they may be elsewhere.
    """

    def __init__(
        self,
        parameters: Tensors,
        opaque: frozenset[str] = frozenset(),
        copies: bool = False,
        examples: int | None = None,
    ) -> None:
        super().__init__()
        self.copies, self._examples, self._opaque = copies, examples, opaque
        self._versions: list[tuple[int, int]] = []
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self.uses: list[LayerUse] = []
        self.others: set[str] = set()
        self.differentiates = False
        """Whether a derivative was taken inside of the run."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record the call if a parameter takes part in it."""
        kwargs = kwargs or {}
        self.differentiates |= func in DERIVATIVES or forward_ad._current_level >= 0
        names = (self._names.get(id(tensor)) for tensor in tensors_in(args, kwargs))
        touched = {name for name in names if name is not None}
        if not touched:
            return func(*args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            found = func(*args, **kwargs)
            if isinstance(found, Tensor) and self._enters(found):  # a view: `weight.T`
                self.others |= touched
            return found
        known = func in _METHODS and not touched & self._opaque
        if known and not self._is_made(args[1:], kwargs):
            if self.copies and args:
                args = (args[0].clone(), *args[1:])
            output = getattr(self, _METHODS[func])(*args, **kwargs)
            if output is not None:
                used = {self.uses[-1].weight, self.uses[-1].bias}
                self.others |= touched - used  # a parameter may be a layer's input
                return output.clone() if self.copies else output
        self.others |= touched
        return func(*args, **kwargs)

    def _is_made(self, rest: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether a layer has a weight or bias that is computed, and so is no constant."""
        others = tensors_in(rest, {name: one for name, one in named.items() if name != "input"})
        return any(one.requires_grad and self._names.get(id(one)) is None for one in others)

    def _enters(self, input: Tensor) -> bool:
        """Whether a layer with this input has a place in the graph."""
        return input.requires_grad

    _convolved = staticmethod(ConstantConv.apply)

    def _add(self, use: LayerUse) -> Tensor:
        self.uses.append(use)
        self._versions.append((use.a._version, use.h._version))
        return use.h

    @property
    def shared(self) -> set[str]:
        """Parameters of layers that are used elsewhere, too, or with another first axis."""
        names = [name for use in self.uses for name in use.names]
        if self.differentiates:
            return set(names)
        twice = {name for name in names if names.count(name) > 1 or name in self.others}
        if self._examples is None:
            return twice
        kept = {self._examples}
        regrouped = [use for use in self.uses if {len(use.a), len(use.h)} != kept]
        return twice | {name for use in regrouped for name in use.names}

    @property
    def overwritten(self) -> bool:
        """Whether an operation in place (`ReLU(inplace=True)`) changed what was recorded."""
        return self._versions != [(use.a._version, use.h._version) for use in self.uses]

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        name = self._names.get(id(weight))
        if name is None or not self._enters(input) or input.dim() < 2:
            return None
        if bias is not None and bias.shape != weight.shape[:1]:  # it is broadcast
            return None
        h = F.linear(input, weight.detach(), _constant(bias))
        before = [use.shape[0] for use in self.uses if isinstance(use, ConvUse)][-1:]
        flattened = before and input.dim() == 2 and input.shape[1] % before[0] == 0
        channels = before[0] if flattened else None
        use = LinearUse(name, self._names.get(id(bias)), weight.shape, input, h, channels)
        return self._add(use)

    def _conv(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        name, n = self._names.get(id(weight)), weight.dim() - 2
        known = not isinstance(padding, str) and input.dim() == n + 2
        alone = len(input) == (self._examples or 1)  # else several images for each example
        if name is None or not known or not alone or not self._enters(input):
            return None
        spacing = [[s] * n if isinstance(s, int) else list(s) for s in (stride, padding, dilation)]
        geometry = (*spacing, False, [0] * n, groups)
        h = self._convolved(input, weight.detach(), _constant(bias), geometry)
        return self._add(ConvUse(name, self._names.get(id(bias)), weight.shape, input, h, geometry))

    def _embedding(
        self,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor | None:
        name = self._names.get(id(weight))
        if name is None or not self._enters(input) or input.dim() == 0:
            return None
        if max_norm is not None or scale_grad_by_freq:
            return None
        h = F.embedding(input, weight.detach())
        if padding_idx is not None and padding_idx < 0:
            padding_idx += len(weight)
        return self._add(EmbeddingUse(name, None, weight.shape, input, h, padding_idx))

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor | None:
        if training or running_mean is None or running_var is None:
            return None
        form = [1, -1] + [1] * (input.dim() - 2)
        gain = (running_var + eps).rsqrt()
        normal = torch.addcmul((-running_mean * gain).view(form), input, gain.view(form))
        return self._scale(normal, weight, bias, 1)

    def _layer_norm(
        self,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor | None:
        if len(normalized_shape) != 1:
            return None
        normal = F.layer_norm(input, normalized_shape, None, None, eps)
        return self._scale(normal, weight, bias, input.dim() - 1)

    def _group_norm(
        self,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor | None:
        return self._scale(F.group_norm(input, num_groups, None, None, eps), weight, bias, 1)

    def _scale(
        self, normal: Tensor, weight: Tensor | None, bias: Tensor | None, axis: int
    ) -> Tensor | None:
        name = self._names.get(id(weight))
        if weight is None or bias is None or name is None or not self._enters(normal):
            return None
        form = [1] * normal.dim()
        form[axis] = -1
        h = torch.addcmul(bias.detach().view(form), normal, weight.detach().view(form))
        return self._add(ScaleUse(name, self._names.get(id(bias)), weight.shape, normal, h, axis))


def tensors_in(*things: Any) -> list[Tensor]:
    """The tensors in these, and in tuples, lists and dicts of them, of whatever class."""
    found: list[Tensor] = []
    for thing in things:
        if isinstance(thing, Tensor):
            found.append(thing)
        elif isinstance(thing, (tuple, list)):
            found += tensors_in(*thing)
        elif isinstance(thing, dict):
            found += tensors_in(*thing.values())
    return found


def _constant(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()


Result = TypeVar("Result")
SomeRecorder = TypeVar("SomeRecorder", bound=Recorder)


def settled(
    recorder_of: Callable[[frozenset[str], bool], SomeRecorder], run: Callable[[], Result]
) -> tuple[SomeRecorder, Result]:
    """A run, watched by a recorder that understood all of it, and what it returned.

    Parameters that a layer shares with something else make everything run again with them among
    the others, where all of their uses count together. An operation in place on what a layer took
    or gave does so, too, with copies.

    Args:
        recorder_of: From `opaque` and `copies` to a recorder with these.
        run: Uses the parameters.
    """
    opaque, copies = frozenset[str](), False
    while True:
        with torch.enable_grad(), recorder_of(opaque, copies) as recorder:
            result = run()
        if recorder.overwritten and not copies:
            copies = True
        elif recorder.shared:
            opaque |= recorder.shared
        else:
            return recorder, result
