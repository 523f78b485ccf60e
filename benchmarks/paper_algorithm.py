"""The paper's Algorithm 1, transcribed step by step: what all others are measured against."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._tensors import Tensors
from gradveil.messages import GradientMessage, Message
from gradveil.sensitivity import Measurement, draw_probes


@dataclass(frozen=True)
class PaperAlgorithm:
    """Steps 1 to 3 of Algorithm 1 with plain reverse mode, one probe after the other.

    The derivative of g along v is that of ⟨∂⟨g, u⟩/∂x, v⟩ with respect to u: two backward passes
    through the graph of the gradient for each probe.
    """

    probes: int = 10

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure a gradient message at these inputs."""
        assert isinstance(message, GradientMessage)
        parameters = {n: p.clone().requires_grad_() for n, p in message.parameters.items()}
        x = inputs.clone().requires_grad_()
        loss = message.loss(parameters, x, message.targets)
        gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        sums: Tensors = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for direction in draw_probes(inputs, self.probes, generator):
            for name, tangent in zip(sums, _along(gradients, x, direction), strict=True):
                sums[name] += tangent.square() / self.probes
        values = {name: g.detach() for name, g in zip(sums, gradients, strict=True)}
        return Measurement(values, sums)


def _along(gradients: tuple[Tensor, ...], x: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
    dummies = [torch.zeros_like(g, requires_grad=True) for g in gradients]
    (pulled,) = torch.autograd.grad(gradients, x, dummies, create_graph=True)
    return torch.autograd.grad(pulled, dummies, direction, retain_graph=True)
