"""What a message says of the head, as equations for the outputs of its first layer."""

import torch
from torch import Tensor

from .._evidence import Evidence
from ._head import Head


class HeadEquations:
    """The head's equations in one row, each block relative to its own size."""

    def __init__(self, head: Head, labels: Tensor) -> None:
        self.head, self.labels = head, labels
        weight = head.sent("weight")
        assert weight is not None
        self.layer = head.layer.weight.detach()
        self.offset = 0.0 if head.layer.bias is None else head.layer.bias.detach()
        left = torch.linalg.svd(weight, full_matrices=True)[0]
        self.outside = left[:, len(labels) :]
        self.evidence = self._evidence(weight)

    def __call__(self, outputs: Tensor) -> Tensor:
        later, delta = self.head.gradients(outputs, self.labels)
        blocks = [later[name] for name in self.head.later]
        if self.head.sent("bias") is not None:
            blocks.append(delta.sum(0))
        blocks += [delta.T @ (outputs - self.offset), delta @ self.outside]
        return torch.cat([block.flatten() for block in blocks])

    def _evidence(self, weight: Tensor) -> Evidence:
        blocks = [self.head.observation.sent[name] for name in self.head.later]
        bias = self.head.sent("bias")
        if bias is not None:
            blocks.append(bias)
        blocks.append(weight @ self.layer.T)
        weights = [torch.full_like(b, 2 / float(b.square().sum())).flatten() for b in blocks]
        beside = weight.new_zeros(len(self.labels) * self.outside.shape[1])
        target = torch.cat([*(b.flatten() for b in blocks), beside])
        weights.append(torch.full_like(beside, 2 / float(self._delta_power())))
        return Evidence(target, target, torch.cat(weights))

    def _delta_power(self) -> Tensor:
        """‖Δ‖² at random outputs, the unit of what lies outside of the column space."""
        count = len(self.labels)
        delta = self.head.gradients(self.head.outputs[:1].expand(count, -1), self.labels)[1]
        return delta.square().sum()


def features_from(head: Head, outputs: Tensor, labels: Tensor) -> Tensor:
    """H = Δ⁺ ∂L/∂W, the inputs of the layer, from its outputs."""
    delta, weight = head.gradients(outputs, labels)[1], head.sent("weight")
    assert weight is not None
    features: Tensor = torch.linalg.pinv(delta.T) @ weight
    return features


def features_noise(head: Head, outputs: Tensor, labels: Tensor) -> Tensor:
    """E‖H - Δ⁺ ∂L/∂W‖² of each example: features · std² · [(Δ Δᵀ)⁻¹]_nn under the head's noise."""
    delta, weight = head.gradients(outputs, labels)[1], head.sent("weight")
    assert weight is not None
    gains: Tensor = torch.linalg.pinv(delta.T).square().sum(1)
    return weight.shape[1] * head.noise**2 * gains
