"""The batches that an informed attacker thinks possible, and the messages that they would make."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad, vmap

from gradveil._typing import Tensors
from gradveil.messages import GradientMessage, Message, separates, values_of
from gradveil.sensitivity import chunk_size

from .._observation import Observation


@dataclass(frozen=True)
class Candidates:
    """Each candidate at one place of a batch whose other examples are known."""

    observation: Observation
    """Of the model, the loss and the kind of message."""
    inputs: Tensor
    """One row for each candidate."""
    targets: Tensor
    """The label of each candidate."""
    rest: tuple[Tensor, Tensor] | None
    """The other examples of the batch, in the client's order."""
    position: int
    """Where the candidate goes."""
    known: Sequence[Tensors] | None = None
    """The undefended messages, where they were computed before."""

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """The inputs and the labels of the whole batch with this candidate."""
        own = self.inputs[index : index + 1], self.targets[index : index + 1]
        if self.rest is None:
            return own
        at = self.position
        inputs, targets = (
            torch.cat([known[:at], mine, known[at:]])
            for known, mine in zip(self.rest, own, strict=True)
        )
        return inputs, targets

    def message(self, index: int) -> Message:
        """What a client with this candidate would send, as a function of the inputs."""
        return self.observation.message(self.batch(index)[1])

    def values(self) -> Iterator[Tensors]:
        """The undefended message with each candidate, one after the other.

        Where examples add up, g_k = g_0 - g_{0,own} + g_{k,own}: one gradient of a single example
        for each candidate, several at a time. Otherwise one message for each.
        """
        if self.known is not None:
            yield from self.known
            return
        message, (inputs, _) = self.message(0), self.batch(0)
        if isinstance(message, GradientMessage) and separates(message, inputs):
            deltas = self._output_gradients(message)
            if deltas is not None:
                yield from self._summed(message, deltas)
                return
        for index in range(len(self)):
            yield values_of(self.message(index), self.batch(index)[0])

    def _output_gradients(self, message: GradientMessage) -> Tensor | None:
        """∂L/∂output of each candidate; `None` where a candidate changes those of the others."""
        inputs, _ = self.batch(0)
        with torch.no_grad():
            known = message.loss.outputs(message.parameters, inputs)
            own = message.loss.outputs(message.parameters, self.inputs)
        alike = isinstance(own, Tensor) and isinstance(known, Tensor) and own.dim() == known.dim()
        if not alike or len(own) != len(self):
            return None
        rows, first = [], None
        for index in range(len(self)):
            outputs = known.clone()
            outputs[self.position] = own[index]
            delta = grad(message.loss.loss_of_outputs)(outputs, self.batch(index)[1])
            others = _without(delta, self.position)
            first = others if first is None else first
            if not torch.allclose(others, first, rtol=1e-5, atol=1e-7 * float(delta.abs().max())):
                return None
            rows.append(delta[self.position])
        return torch.stack(rows)

    def _summed(self, message: GradientMessage, deltas: Tensor) -> Iterator[Tensors]:
        """The messages as the sum of what the others and the candidate add."""
        whole = values_of(message, self.batch(0)[0])
        alone = message.example_gradient(self.inputs[0], deltas[0])
        others = {name: value - alone[name] for name, value in whole.items()}
        size = chunk_size(whole)
        for inputs, delta in zip(self.inputs.split(size), deltas.split(size), strict=True):
            added = _example_gradients(message, inputs, delta)
            for row in range(len(inputs)):
                yield {name: value + added[name][row] for name, value in others.items()}


def _example_gradients(message: GradientMessage, inputs: Tensor, deltas: Tensor) -> Tensors:
    """What each example adds, batched where all layers have batching rules."""
    with torch.no_grad():
        try:
            batched: Tensors = vmap(message.example_gradient)(inputs, deltas)
            return batched
        except RuntimeError:  # a layer without a batching rule
            rows = [message.example_gradient(x, d) for x, d in zip(inputs, deltas, strict=True)]
            return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _without(rows: Tensor, position: int) -> Tensor:
    return torch.cat([rows[:position], rows[position + 1 :]])
