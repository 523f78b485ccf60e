"""The end of a model, from its first linear layer on: a small problem that is solved alone."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import grad

from gradveil._tensors import Tensors
from gradveil.messages import FunctionalLoss

from ._model_layers import (
    Call,
    SmoothTwin,
    linear_calls,
    loss_of,
    noise_beside,
    random_inputs,
    recorded,
)
from ._observation import Observation

CLEAR, ROUGH = 1e-3, 0.5
"""How large the first singular value of the layer's gradient beyond the rank of the batch may be,
over the last within it: where it is rounding, and where a little noise still shows the rank."""


@dataclass(frozen=True)
class Head:
    """u = W h + b, and all that comes after it.

    All that a message says of it follows from U, the layer's outputs of all examples: the later
    parameters' gradients, and ∂L/∂W = Σ_n δ_n h_nᵀ with δ_n = ∂L/∂u_n. As long as a batch has fewer
    examples than the layer has units these are more equations than U has entries, and none of them
    needs the layers before.
    """

    twin: SmoothTwin
    """Of the observation in double precision."""
    call: Call
    """The layer, in the twin."""
    probe: Tensor
    """One random input."""
    outputs: Tensor
    """U at random inputs."""
    noise: float = 0.0
    """The standard deviation of noise in the layer's gradient, as its singular values show it."""

    @property
    def observation(self) -> Observation:
        """The twin's."""
        return self.twin.observation

    @property
    def layer(self) -> nn.Linear:
        """The first linear layer."""
        layer: nn.Linear = self.call.layer
        return layer

    @property
    def weight(self) -> Tensor:
        """∂L/∂W as it was sent."""
        return self.observation.sent[self.call.weight]

    @property
    def bias(self) -> Tensor | None:
        """∂L/∂b as it was sent, if it was."""
        return self.observation.sent.get(self.call.bias)

    @cached_property
    def later(self) -> list[str]:
        """The parameters that only the layers after this one have."""
        names = [n for n, m in self.observation.model.named_modules() if isinstance(m, nn.Linear)]
        after = names[names.index(self.call.name) + 1 :]
        return [n for n in self.observation.sent if n.rpartition(".")[0] in after]

    @cached_property
    def loss(self) -> FunctionalLoss:
        """Of the twin."""
        return loss_of(self.observation)

    @cached_property
    def is_last(self) -> bool:
        """Whether the model returns U as it is."""
        marked = torch.arange(self.outputs.shape[1]).to(self.outputs)[None]
        with torch.no_grad():
            returned = self._returned(marked, self.probe)
        return isinstance(returned, Tensor) and torch.equal(returned, marked)

    def _returned(self, outputs: Tensor, inputs: Tensor, **moved: Tensor) -> Tensor:
        """What the model makes of U."""
        with self.layer.register_forward_hook(lambda *_: outputs):
            returned: Tensor = self.loss.outputs({**self.loss.parameters, **moved}, inputs)
        return returned

    def gradients(
        self, outputs: Tensor, labels: Tensor, later: Tensors | None = None
    ) -> tuple[Tensors, Tensor]:
        """Of the loss, with respect to the later parameters and to U; `later`: if they moved."""
        labels = labels.to(outputs) if labels.is_floating_point() else labels
        if self.is_last:
            return {}, grad(self.loss.loss_fn)(outputs, labels)

        def loss_of(parameters: Tensors, outputs: Tensor) -> Tensor:
            with self.layer.register_forward_hook(lambda *_: outputs):
                return self.loss({**self.loss.parameters, **parameters}, self.probe, labels)

        if later is None:
            later = {name: self.loss.parameters[name] for name in self.later}
        gradients: tuple[Tensors, Tensor] = grad(loss_of, argnums=(0, 1))(later, outputs)
        return gradients

    def inputs_of(self, layer: nn.Linear, outputs: Tensor) -> Tensor:
        """What a later layer reads if U is this, in one row."""
        with recorded([("", layer)]) as seen:
            self._returned(outputs, self.probe)
        return seen[0].inputs.flatten()

    def features(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """H = Δ⁺ ∂L/∂W, the inputs of the layer, from its outputs; and E‖error‖² of each.

        The error is that of noise: features · std² · [(Δ Δᵀ)⁻¹]_nn.
        """
        inverse: Tensor = torch.linalg.pinv(self.gradients(outputs, labels)[1].T)
        noise = self.weight.shape[1] * self.noise**2 * inverse.square().sum(1)
        return inverse @ self.weight, noise

    @property
    def is_all(self) -> bool:
        """Whether no other parameters act after the layer: those would move unseen."""
        others = {n: p for n, p in self.loss.parameters.items() if n not in self.later}

        def size(parameters: Tensors) -> Tensor:
            return self._returned(self.outputs[:1], self.probe, **parameters).square().sum()

        return not any(bool(slope.any()) for slope in grad(size)(others).values())

    @property
    def is_whole(self) -> bool:
        """Whether something was sent of each parameter: pruning may leave nothing of one."""
        parts = [self.weight, self.bias, *(self.observation.sent[name] for name in self.later)]
        return all(part is None or bool(part.any()) for part in parts)

    def is_a_cut(self, probe: Tensor) -> bool:
        """Whether the model's outputs are a function of U alone, example by example."""
        try:
            with torch.no_grad():
                one, other = (self._returned(self.outputs, alone) for alone in probe[:2].split(1))
        except (RuntimeError, ValueError, IndexError):
            return False
        same = isinstance(one, Tensor) and one.shape[:1] == probe.shape[:1]
        return same and torch.equal(one, other)

    def sharpen(self) -> None:
        """Make the twin's activations nearly the model's own."""
        self.twin.set_width(1e-4 * float(self.outputs.square().mean().sqrt()))


def head_of(
    observation: Observation,
    generator: torch.Generator,
    gap: float = CLEAR,
    visits: int | None = None,
) -> Head | None:
    """The head of the model; `None` where a message does not determine it.

    All information must flow through one linear layer with more outputs than there are examples,
    and the layer's weight gradient must have the rank of the batch up to a `gap`: noise and pruning
    destroy that. FedAvg's weight change has at most the rank of the `visits`: an example is visited
    by each local step that takes it; of a gradient they are as many as examples.
    """
    probe = random_inputs(observation, 32, generator)
    for call in linear_calls(observation, probe)[0]:
        weight = observation.sent.get(call.weight)
        if weight is None or call.inputs.dim() != 2 or len(call.inputs) != len(probe):
            continue
        noise = _noise(weight.double(), observation.batch_size, visits, gap)
        if noise is None:
            return None
        sent = {name: value.double() for name, value in observation.sent.items()}
        model = copy.deepcopy(observation.model).double()
        twin = SmoothTwin(replace(observation, model=model, sent=sent), 1.0)
        outputs = call.layer(call.inputs).detach().double()
        own = call._replace(layer=twin.observation.model.get_submodule(call.name))
        head = Head(twin, own, probe[:1].double(), outputs, noise)
        return head if head.is_whole and head.is_a_cut(probe.double()) else None
    return None


def _noise(weight: Tensor, examples: int, visits: int | None, gap: float) -> float | None:
    """The standard deviation of what is beside the rank; `None` where that is hidden."""
    rank = examples if visits is None else visits
    if rank >= min(weight.shape):
        return None
    sizes = torch.linalg.svdvals(weight)
    ratio = float(sizes[rank] / sizes[examples - 1])
    if not ratio < gap:
        return None
    return 0.0 if ratio < CLEAR else noise_beside(sizes, weight.shape, rank)
