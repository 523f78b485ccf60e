"""Tangents of all layers at once, from backward passes through the graph of the input gradient."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, check_match, record


@dataclass(frozen=True)
class Tangents:
    """Derivatives along one direction v of the inputs, layer by layer."""

    inputs: list[Tensor]
    """a', of the layers' inputs."""
    signals: list[Tensor]
    """δ', of the layers' signals."""
    others: Tensors
    """∂_v g of the parameters outside known layers."""
    overlap: Tensor
    """⟨v_b, q_b⟩ with the input gradient's direction q, for each example."""

    def pair(self, index: int, along: "Tangents | None" = None) -> tuple[Tensor, Tensor]:
        """(a', δ') of one layer; given the tangents along q, those along v - q ⟨v, q⟩."""
        pair = self.inputs[index], self.signals[index]
        if along is None:
            return pair
        a_along, signal_along = along.pair(index)
        return off(pair[0], a_along, self.overlap), off(pair[1], signal_along, self.overlap)


class TangentGraph:
    """The gradient of a message, and the graph from which tangents are swept.

    Let dx = ∂L/∂x be computed with its graph. For a direction v of the inputs, ONE backward pass
    through that graph, started with v at dx, yields for every layer

        ∂⟨dx, v⟩ / ∂(∂L/∂a) = a'     the tangent of its input along v (a forward sweep), and
        ∂⟨dx, v⟩ / ∂h       = δ'     the tangent of its signal, Hessians being symmetric
                                     (a backward sweep).

    The ordinary autograd engine so does what forward-over-reverse does: the primal values are
    shared by all directions, and no weight gradients are computed. Parameters outside known layers,
    and those used more than once, are leaves of the same graph: ∂⟨dx, v⟩/∂Θ = ∂_v g.
    """

    def __init__(
        self, message: GradientMessage, inputs: Tensor, opaque: frozenset[str] = frozenset()
    ) -> None:
        check_match(inputs, message.targets)
        parameters = {n: p.detach().requires_grad_() for n, p in message.parameters.items()}
        self.x = inputs.detach().clone().requires_grad_()
        run = record(
            lambda: message.loss(parameters, self.x, message.targets),
            parameters,
            len(self.x),
            opaque,
        )
        self.uses = run.uses
        self.others = {name: parameters[name] for name in parameters if name in run.others}
        self.input_gradient, self._others_gradient = self._differentiate(run.result)

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """The gradient of each parameter that is used, made when it is asked for."""
        yield from self._others_gradient.items()
        for use in self.uses:
            yield from use.gradient().items()

    def sweep(self, direction: Tensor, overlap: Tensor) -> Tangents:
        """Tangents of every layer along the direction."""
        wanted = [use.input_signal for use in self.uses]
        wanted += [use.h for use in self.uses] + list(self.others.values())
        tangents = _gradients(self.input_gradient, wanted, direction)
        n = len(self.uses)
        others = dict(zip(self.others, tangents[2 * n :], strict=True))
        return Tangents(tangents[:n], tangents[n : 2 * n], others, overlap)

    def sweep_inputs(self, direction: Tensor, layers: list[int]) -> dict[int, Tensor]:
        """a' of these layers alone: the forward half of a sweep, for half the price."""
        wanted = [self.uses[index].input_signal for index in layers]
        return dict(zip(layers, _gradients(self.input_gradient, wanted, direction), strict=True))

    def _differentiate(self, loss: Tensor) -> tuple[Tensor, Tensors]:
        uses, others = self.uses, list(self.others.values())
        wanted = [self.x, *[use.a for use in uses], *[use.h for use in uses], *others]
        gradients = torch.autograd.grad(
            loss, wanted, create_graph=True, allow_unused=True, materialize_grads=True
        )
        n = len(uses)
        for use, input_signal, signal in zip(
            uses, gradients[1 : n + 1], gradients[n + 1 : 2 * n + 1], strict=True
        ):
            use.input_signal, use.signal = input_signal, signal.detach()
        rest = (gradient.detach() for gradient in gradients[2 * n + 1 :])
        return gradients[0], dict(zip(self.others, rest, strict=True))


def per_example(numbers: Tensor, like: Tensor) -> Tensor:
    """One number for each example, in a shape that multiplies `like`."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


def off(moved: Tensor, along: Tensor, overlap: Tensor) -> Tensor:
    """A tangent along v - q ⟨v, q⟩, given those along v and q, and ⟨v, q⟩ of each example."""
    return moved - along * per_example(overlap, along)


def _gradients(outputs: Tensor, wanted: list[Tensor], direction: Tensor) -> list[Tensor]:
    if not outputs.requires_grad:  # the input gradient is constant: so is the whole message
        return [torch.zeros_like(tensor) for tensor in wanted]
    return list(
        torch.autograd.grad(
            outputs, wanted, direction, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    )
