"""Lemma 1 and Algorithm 1 of the paper: random directions in the space of the whole batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_choice, check_count
from gradveil._typing import Tensors
from gradveil.messages import Message

from ._derivatives import Mode, row_derivatives
from ._estimator import Measurement, SquareSums, chunk_size, draw_probes


@dataclass(frozen=True)
class Sketch:
    """‖∇g_i‖² = E_v (∂_v g_i)² for random directions v with E[v vᵀ] = I (Lemma 1).

    Unbiased: E (∇g_iᵀ v)² = ∇g_iᵀ E[v vᵀ] ∇g_i. With Gaussian probes (∂_v g_i)² is ‖∇g_i‖² χ²₁,
    so k probes have a relative standard error of √(2/k). Forward mode over reverse mode: the
    price of a probe is that of about two gradients, whatever the number of parameters. Works for
    every message; examples of a batch add cross terms of mean zero, which `PerExample` avoids.

    Args:
        probes: The number k of directions; the paper uses 10.
        kind: "gaussian" (as printed) or "rademacher" (random signs).

    >>> from gradveil import measure
    >>> message = lambda inputs: {"w": inputs.square().sum(0)}
    >>> generator = torch.Generator().manual_seed(0)
    >>> inputs = torch.tensor([[1.0, 2.0]])
    >>> moments = measure(message, inputs, Sketch(probes=1000), generator=generator)
    >>> [round(float(square)) for square in moments.squared_sensitivities["w"]]
    [4, 17]
    """

    probes: int = 10
    kind: str = "gaussian"

    def __post_init__(self) -> None:
        check_count(self.probes, "probes")
        check_choice(self.kind, "kind", ("gaussian", "rademacher"))

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure the message at these inputs."""
        values = message(inputs)
        sums = SquareSums(values)
        probes = draw_probes(inputs, self.probes, self.kind, generator)
        for directions in probes.split(chunk_size(values)):
            sums.add(directional_derivatives(message, inputs, directions))
        return sums.measurement(values, self.probes)


def directional_derivatives(message: Message, inputs: Tensor, directions: Tensor) -> Tensors:
    """∂_v g for each row v of `directions`: tensors of shape (directions, *shape)."""

    def along(mode: Mode, direction: Tensor) -> Tensors:
        return mode(message, (inputs,), (direction,))

    return row_derivatives(along, directions)
