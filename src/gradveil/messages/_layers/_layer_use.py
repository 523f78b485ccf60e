"""Layers seen from their parameters: what one use of a weight contributes for each example."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradveil._typing import Tensors


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
    """A convolution; geometry: stride, padding, dilation, transposed, output padding, groups."""

    geometry: tuple[Any, ...] = ()

    def products(self, signal: Tensor, a: Tensor) -> Tensor:
        """The weight gradient of each example: one grouped convolution, an example a group."""
        examples = len(a)
        *spacing, groups = self.geometry
        weight = a.new_empty(1).expand(examples * self.shape[0], *self.shape[1:])
        gradients: Tensor = torch.ops.aten.convolution_backward(
            signal.reshape(1, -1, *signal.shape[2:]),
            a.reshape(1, -1, *a.shape[2:]),
            weight,
            None,
            *spacing,
            examples * groups,
            [False, True, False],
        )[1]
        return gradients.view(examples, *self.shape)

    def sums(self, signal: Tensor) -> Tensor:
        """Over the positions."""
        return signal.flatten(2).sum(2)

    def weight_gradient(self) -> Tensor:
        """One convolution."""
        weight = self.a.new_empty(1).expand(self.shape)
        gradient: Tensor = torch.ops.aten.convolution_backward(
            self.signal, self.a.detach(), weight, None, *self.geometry, [False, True, False]
        )[1]
        return gradient


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
