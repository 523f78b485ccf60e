"""The end of a model, from its first linear layer on: a small problem that can be solved alone."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from gradveil._typing import Tensors
from gradveil.messages import FunctionalLoss

from .._evidence import linear_calls, random_inputs
from .._observation import Observation
from ._smoothing import SmoothTwin

_PROBES = 32
_GAP = 1e-3  # of singular values: below it what is left of the weight's gradient is rounding
ROUGH = 0.5
"""The same gap for a message with a little noise, or rounded, that still shows the rank."""


@dataclass(frozen=True)
class Head:
    """u = W h + b, and all that comes after it.

    Everything that a message says of the head follows from U, the layer's outputs of all examples:
    δ_n = ∂L/∂u_n and the gradients of all later parameters. Beside them

        ∂L/∂b = Σ_n δ_n,    ∂L/∂W Wᵀ = Σ_n δ_n (u_n - b)ᵀ,    δ_n in the column space of ∂L/∂W

    with ∂L/∂W = Σ_n δ_n h_nᵀ. These are more equations than U has entries as long as a batch has
    fewer examples than the layer has units, and none of them needs the layers before.
    """

    observation: Observation
    """In double precision, its model a smooth twin."""
    twin: SmoothTwin
    name: str
    probe: Tensor
    outputs: Tensor
    """U at random inputs."""
    is_last: bool = False
    """Whether U is what the model returns."""
    noise: float = 0.0
    """The standard deviation of noise in the layer's gradient, as its singular values show it."""

    @property
    def layer(self) -> nn.Linear:
        """The first linear layer."""
        layer = self.observation.model.get_submodule(self.name)
        assert isinstance(layer, nn.Linear)
        return layer

    def gradients(
        self, outputs: Tensor, labels: Tensor, later: Tensors | None = None
    ) -> tuple[Tensors, Tensor]:
        """Of the loss, with respect to the later parameters and to U; `later`: if they moved."""
        loss = FunctionalLoss(self.observation.model, self.observation.loss_fn, seed=0)
        labels = labels.to(outputs) if labels.is_floating_point() else labels
        if self.is_last:
            return {}, grad(loss.loss_fn)(outputs, labels)

        def loss_of(parameters: Tensors, outputs: Tensor) -> Tensor:
            with _hooked(self.layer, lambda *_: outputs):
                return loss({**loss.parameters, **parameters}, self.probe, labels)

        if later is None:
            later = {name: loss.parameters[name] for name in self.later}
        gradients: tuple[Tensors, Tensor] = grad(loss_of, argnums=(0, 1))(later, outputs)
        return gradients

    def inputs_of(self, layer: nn.Linear, outputs: Tensor) -> Tensor:
        """What a later layer reads if U is this, in one row."""
        loss = FunctionalLoss(self.observation.model, self.observation.loss_fn, seed=0)
        seen: list[Tensor] = []
        with (
            _hooked(self.layer, lambda *_: outputs),
            _hooked(layer, lambda _, arguments, __: seen.append(arguments[0])),
        ):
            loss.outputs(loss.parameters, self.probe)
        return seen[0].flatten()

    @property
    def later(self) -> list[str]:
        """The parameters that only the layers after this one have."""
        names = [n for n, m in self.observation.model.named_modules() if isinstance(m, nn.Linear)]
        after = names[names.index(self.name) + 1 :]
        return [n for n in self.observation.sent if n.rpartition(".")[0] in after]

    @property
    def is_all(self) -> bool:
        """Whether no other parameters act after the layer: those would move unseen."""
        loss = FunctionalLoss(self.observation.model, self.observation.loss_fn, seed=0)
        others = {n: p for n, p in loss.parameters.items() if n not in self.later}

        def outputs_of(parameters: Tensors) -> Tensor:
            with _hooked(self.layer, lambda *_: self.outputs[:1]):
                outputs = loss.outputs({**loss.parameters, **parameters}, self.probe)
            size: Tensor = outputs.square().sum()
            return size

        return not any(bool(slope.any()) for slope in grad(outputs_of)(others).values())

    @property
    def is_whole(self) -> bool:
        """Whether something was sent of each parameter: pruning may leave nothing of one."""
        own = [part for which in ("weight", "bias") if (part := self.sent(which)) is not None]
        later = [self.observation.sent[name] for name in self.later]
        return all(bool(part.any()) for part in own + later)

    def sharpen(self) -> None:
        """Make the twin's activations nearly the model's own."""
        self.twin.set_width(1e-4 * float(self.outputs.square().mean().sqrt()))

    def sent(self, which: str) -> Tensor | None:
        """What was sent of the layer's "weight" or "bias"."""
        return self.observation.sent.get(f"{self.name}.{which}" if self.name else which)


def head_of(observation: Observation, generator: torch.Generator, gap: float = _GAP) -> Head | None:
    """The head of the model; `None` where a message does not determine it.

    It must be a gradient, all information must flow through one linear layer with more outputs than
    there are examples, and the layer's weight gradient must have the rank of the batch: noise and
    pruning destroy that. `gap` is how large its next singular value may be, over the last of these.
    """
    if observation.local is not None:
        return None
    return _head(observation, generator, lambda weight: _noise(weight, observation.batch_size, gap))


def head_of_update(
    observation: Observation, generator: torch.Generator, visits: int
) -> Head | None:
    """The same of FedAvg's weight change, whose rank is at most the number of `visits`.

    An example is visited by each local step that takes it; singular values beyond the visits are
    rounding where nothing hides the rank.
    """

    def noise(weight: Tensor) -> float | None:
        if visits >= min(weight.shape):
            return None
        sizes = torch.linalg.svdvals(weight.double())
        return 0.0 if bool(sizes[visits] < _GAP * sizes[observation.batch_size - 1]) else None

    return _head(observation, generator, noise)


def _head(
    observation: Observation,
    generator: torch.Generator,
    noise_of: Callable[[Tensor], float | None],
) -> Head | None:
    """The first linear layer that could be a cut, if it is one and its rank is seen."""
    probe = random_inputs(observation, _PROBES, generator)
    for call in linear_calls(observation, probe)[0]:
        weight = observation.sent.get(call.weight)
        if weight is None or call.inputs.dim() != 2 or len(call.inputs) != _PROBES:
            continue
        noise = noise_of(weight)
        if noise is None:
            return None
        double = _in_double(observation)
        twin = SmoothTwin(double, 1.0)
        outputs = call.layer(call.inputs).detach().double()
        head = Head(twin.observation, twin, call.name, probe[:1].double(), outputs, noise=noise)
        if not head.is_whole or not _is_a_cut(head, probe.double()):
            return None
        return replace(head, is_last=_is_last(head))
    return None


@contextmanager
def _hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def features_of(
    name: str, observation: Observation, parameters: Tensors | None = None
) -> Callable[[Tensor], Tensor]:
    """From the inputs to those of the layer of that name, in the observation's own model.

    `parameters` are those of the model if they moved.
    """
    layer = observation.model.get_submodule(name)
    loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)

    def features(inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []
        with _hooked(layer, lambda _, arguments, __: seen.append(arguments[0])):
            loss.outputs(parameters or loss.parameters, inputs)
        return seen[0]

    return features


def _noise(weight: Tensor, batch_size: int, gap: float) -> float | None:
    """The standard deviation of what is beside the batch's rank; `None` where that is hidden."""
    if batch_size >= weight.shape[0] or batch_size > weight.shape[1]:
        return None
    sizes = torch.linalg.svdvals(weight.double())
    if not bool(sizes[batch_size] < gap * sizes[batch_size - 1]):
        return None
    if bool(sizes[batch_size] < _GAP * sizes[batch_size - 1]):
        return 0.0
    entries = (weight.shape[0] - batch_size) * (weight.shape[1] - batch_size)
    return float((sizes[batch_size:].square().sum() / max(1, entries)).sqrt())


def _in_double(observation: Observation) -> Observation:
    model = copy.deepcopy(observation.model).double()
    return replace(
        observation, model=model, sent={k: v.double() for k, v in observation.sent.items()}
    )


def _is_a_cut(head: Head, probe: Tensor) -> bool:
    """Whether the model's outputs are a function of U alone, example by example."""
    loss = FunctionalLoss(head.observation.model, head.observation.loss_fn, seed=0)
    with torch.no_grad(), _hooked(head.layer, lambda *_: head.outputs):
        try:
            outputs = [loss.outputs(loss.parameters, alone) for alone in probe[:2].split(1)]
        except (RuntimeError, ValueError, IndexError):
            return False
    same = isinstance(outputs[0], Tensor) and outputs[0].shape[:1] == probe.shape[:1]
    return same and torch.equal(*outputs)


def _is_last(head: Head) -> bool:
    """Whether the model returns U as it is."""
    loss = FunctionalLoss(head.observation.model, head.observation.loss_fn, seed=0)
    marked = torch.arange(head.outputs[:1].numel()).to(head.outputs).view_as(head.outputs[:1])
    with torch.no_grad(), _hooked(head.layer, lambda *_: marked):
        returned = loss.outputs(loss.parameters, head.probe)
    return isinstance(returned, Tensor) and torch.equal(returned, marked)
