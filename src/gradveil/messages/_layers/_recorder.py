"""Watches a model run and notes where its parameters are used."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradveil._typing import Tensors

from ._constant_conv import ConstantConv
from ._layer_use import ConvUse, EmbeddingUse, LayerUse, LinearUse, ScaleUse

_CONVOLUTIONS: dict[Callable[..., Tensor], int] = {F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}


class Recorder(TorchFunctionMode):
    """Notes each use of a parameter in a layer it knows; all other parameters land in `others`.

    Known are linear layers, convolutions, and the scale and shift of batch (in eval mode), layer
    and group normalisation, wherever a model calls them: functions are watched, not modules. In a
    known layer parameters act as constants, so that no weight gradients are computed on the way.

    Args:
        parameters: Leaves, by name.
        opaque: Names to be treated as unknown.
        copies: Whether the inputs and outputs of known layers are copies, which operations in
            place do not reach.
        embeddings: Whether embeddings are known layers. Their inputs are indices, so no derivative
            with respect to the model's inputs goes through them.
    """

    def __init__(
        self,
        parameters: Tensors,
        opaque: frozenset[str],
        copies: bool = False,
        embeddings: bool = False,
    ) -> None:
        super().__init__()
        self._copies, self._embeddings = copies, embeddings
        self._versions: list[tuple[int, int]] = []
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._opaque = opaque
        self.uses: list[LayerUse] = []
        self.others: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record the call if a parameter takes part in it."""
        kwargs = kwargs or {}
        touched = self._touched((*args, *kwargs.values()))
        if not touched:
            return func(*args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            found = func(*args, **kwargs)
            if isinstance(found, Tensor) and found.requires_grad:  # a view: `weight.T`
                self.others |= touched
            return found
        layer = self._layer(func)
        if layer is not None and not touched & self._opaque and not self._is_made(args[1:], kwargs):
            if self._copies and args:
                args = (args[0].clone(), *args[1:])
            output = layer(*args, **kwargs)
            if output is not None:
                used = {self.uses[-1].weight, self.uses[-1].bias}
                self.others |= touched - used  # a parameter may be a layer's input
                return output.clone() if self._copies else output
        self.others |= touched
        return func(*args, **kwargs)

    def _touched(self, arguments: tuple[Any, ...]) -> set[str]:
        flat = [
            leaf
            for argument in arguments
            for leaf in (argument if isinstance(argument, (list, tuple)) else (argument,))
        ]
        return {self._names[id(leaf)] for leaf in flat if id(leaf) in self._names}

    def _layer(self, func: Any) -> Callable[..., Tensor | None] | None:
        if func in _CONVOLUTIONS:
            return lambda *args, **kwargs: self._conv(_CONVOLUTIONS[func], *args, **kwargs)
        known: dict[Any, Callable[..., Tensor | None]] = {
            F.linear: self._linear,
            F.batch_norm: self._batch_norm,
            F.layer_norm: self._layer_norm,
            F.group_norm: self._group_norm,
        }
        if self._embeddings:
            known[F.embedding] = self._embedding
        return known.get(func)

    def _name(self, parameter: Tensor | None) -> str | None:
        return None if parameter is None else self._names.get(id(parameter))

    def _is_made(self, rest: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether a layer has a weight or bias that is computed, and so is no constant."""
        others = (*rest, *(value for name, value in named.items() if name != "input"))
        tensors = [one for one in others if isinstance(one, Tensor)]
        return any(one.requires_grad and self._name(one) is None for one in tensors)

    def _add(self, use: LayerUse) -> Tensor:
        self.uses.append(use)
        self._versions.append((use.a._version, use.h._version))
        return use.h

    @property
    def overwritten(self) -> bool:
        """Whether an operation in place (`ReLU(inplace=True)`) changed what was recorded."""
        return self._versions != [(use.a._version, use.h._version) for use in self.uses]

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        name = self._name(weight)
        if name is None or not input.requires_grad or input.dim() < 2:
            return None
        h = F.linear(input, weight.detach(), _constant(bias))
        channels = self._channels_before(input)
        return self._add(LinearUse(name, self._name(bias), weight.shape, input, h, channels))

    def _channels_before(self, a: Tensor) -> int | None:
        convolutions = [use.shape[0] for use in self.uses if isinstance(use, ConvUse)]
        flattened = convolutions and a.dim() == 2 and a.shape[1] % convolutions[-1] == 0
        return convolutions[-1] if flattened else None

    def _conv(
        self,
        n: int,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        name = self._name(weight)
        known = not isinstance(padding, str) and input.dim() == n + 2
        if name is None or not known or not input.requires_grad:
            return None
        spacing = [[s] * n if isinstance(s, int) else list(s) for s in (stride, padding, dilation)]
        geometry = (*spacing, False, [0] * n, groups)
        h = ConstantConv.apply(input, weight.detach(), _constant(bias), geometry)
        return self._add(ConvUse(name, self._name(bias), weight.shape, input, h, geometry))

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
        name = self._name(weight)
        if name is None or max_norm is not None or scale_grad_by_freq or input.dim() == 0:
            return None
        h = F.embedding(input, weight.detach()).requires_grad_()
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
        name = self._name(weight)
        if weight is None or bias is None or name is None or not normal.requires_grad:
            return None
        form = [1] * normal.dim()
        form[axis] = -1
        h = torch.addcmul(bias.detach().view(form), normal, weight.detach().view(form))
        return self._add(ScaleUse(name, self._name(bias), weight.shape, normal, h, axis))


def _constant(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()
