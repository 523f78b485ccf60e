"""The layers of a model as attacks see them: one at work, chains of convolutions, smooth twins."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp
from torch.nn.functional import conv2d, leaky_relu, max_pool2d

from gradveil._checks import WrongValue
from gradveil._random import normal_like
from gradveil._tensors import Tensors, conjugate_gradients
from gradveil.messages import FunctionalLoss, TokenGradient, random_ids

from ._descent import clamp
from ._observation import Observation


class Call(NamedTuple):
    """One layer at work."""

    name: str
    layer: Any
    inputs: Tensor

    @property
    def weight(self) -> str:
        """The name of its weight in a message."""
        return f"{self.name}.weight".lstrip(".")

    @property
    def bias(self) -> str:
        """The name of its bias in a message."""
        return f"{self.name}.bias".lstrip(".")


def loss_of(observation: Observation) -> FunctionalLoss:
    """The model with its loss, as a function of parameters."""
    return FunctionalLoss(observation.model, observation.loss_fn, seed=0)


@contextmanager
def recorded(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[list[Call]]:
    """Watch modules at work, in the order in which they are done."""
    calls: list[Call] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda layer, arguments, _: calls.append(Call(name, layer, arguments[0]))

    with ExitStack() as stack:
        for name, module in modules:
            stack.enter_context(module.register_forward_hook(hook(name)))
        yield calls


def linear_calls(
    observation: Observation,
    inputs: Tensor,
    parameters: Tensors | None = None,
    kind: type[nn.Module] = nn.Linear,
) -> tuple[list[Call], Tensor]:
    """The calls of the layers of a kind that hold none of it, and the model's outputs."""
    loss = loss_of(observation)
    layers = [(n, m) for n, m in observation.model.named_modules() if isinstance(m, kind)]
    layers = [(n, m) for n, m in layers if not any(isinstance(c, kind) for c in m.children())]
    with recorded(layers) as calls, torch.no_grad():
        outputs = loss.outputs(parameters or loss.parameters, inputs)
    return calls, outputs


def features_of(
    name: str, observation: Observation, parameters: Tensors | None = None
) -> Callable[[Tensor], Tensor]:
    """From the inputs to those of the layer of that name, in the observation's own model.

    `parameters` are those of the model if they moved.
    """
    layer, loss = observation.model.get_submodule(name), loss_of(observation)

    def features(inputs: Tensor) -> Tensor:
        with recorded([(name, layer)]) as calls:
            loss.outputs(parameters or loss.parameters, inputs)
        return calls[0].inputs

    return features


def input_layer(observation: Observation, generator: torch.Generator) -> Call | None:
    """The first linear layer, if it reads the flattened inputs and its gradients were sent."""
    probe = random_inputs(observation, 2, generator)
    for call in linear_calls(observation, probe)[0][:1]:
        same = torch.equal(call.inputs.flatten(), probe.flatten())
        if same and {call.weight, call.bias} <= observation.sent.keys():
            return call
    return None


def last_layer(calls: list[Call], observation: Observation) -> Call:
    """The last linear layer that makes one number for each class and whose weight was sent."""
    classes = observation.num_classes
    for call in calls[::-1]:
        if call.layer.out_features == classes and call.weight in observation.sent:
            return call
    layers = [f"{c.name} ({c.layer.in_features} to {c.layer.out_features})" for c in calls]
    raise WrongValue(
        "observation.model",
        f"end in a trainable `nn.Linear` with {classes} outputs, from whose gradient labels are"
        " read",
        f"linear layers {layers or 'none'}",
        "Grant the labels: `ThreatModel(labels='known')`.",
    )


def random_inputs(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """Standard normal inputs, as normalised data is on average, within the range if known.

    Tokens are drawn evenly from all that there are.
    """
    reference = next(iter(observation.sent.values()))
    if observation.tokens:
        ids = torch.empty(count, *observation.input_shape, dtype=torch.int64)
        message = TokenGradient(observation.model, observation.loss_fn, None)
        return random_ids(message, ids.to(reference.device), generator)
    blank = torch.empty(
        count, *observation.input_shape, dtype=reference.dtype, device=reference.device
    )
    return clamp(normal_like(blank, generator), observation.low, observation.high)


def random_examples(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """Random images with the spectrum of photographs, 1/f² in power, mostly grey, in the range.

    They stand for all that an attacker has not seen: no image of any data set goes into them.
    Where the inputs are no images they are normal numbers.
    """
    blank = random_inputs(observation, count, generator)
    if blank.dim() != 4:
        return blank
    channels, rows, columns = blank.shape[1:]
    shape = (count, channels + 1, 2 * rows, 2 * columns)
    noise = normal_like(blank.new_empty(shape), generator)
    noise = noise[:, 1:] * 0.4 + noise[:, :1]
    down, across = (torch.fft.fftfreq(n, dtype=noise.dtype) for n in shape[-2:])
    sizes = (down[:, None].square() + across.square()).sqrt().clamp(min=1 / max(shape[-2:]))
    spectrum = torch.fft.fft2(noise) / sizes.to(noise.device)
    drawn: Tensor = torch.fft.ifft2(spectrum).real[..., :rows, :columns]
    drawn = drawn / drawn.std()
    if observation.low is None or observation.high is None:
        return drawn
    low, high = observation.low.to(drawn), observation.high.to(drawn)
    return ((low + high) / 2 + drawn * (high - low) / 4).clamp(low, high)


class SmoothLeakyReLU(nn.Module):
    """x (a + (1 - a) σ(x / width)), which tends to LeakyReLU with slope a as the width goes to 0.

    The gradient of a piecewise linear network jumps wherever an input crosses a kink, so a
    matching cost has cliffs and a candidate on the wrong side of one stays there. The twin's
    gradient has none; as the width falls it leads to the model's own.
    """

    def __init__(self, slope: float, width: float) -> None:
        super().__init__()
        self.slope, self.width = slope, width

    def forward(self, inputs: Tensor) -> Tensor:
        gate = torch.sigmoid(inputs / self.width)
        return inputs * (self.slope + (1 - self.slope) * gate)


class SmoothTwin:
    """An observation whose model has smooth activations of a width that can be set.

    Modules of the classes ReLU and LeakyReLU are replaced in a copy; a model without them (or that
    calls them as functions) is its own twin, and `is_smoother` is False.
    """

    def __init__(self, observation: Observation, width: float) -> None:
        model, self._activations = copy.deepcopy(observation.model), list[SmoothLeakyReLU]()
        for name, child in list(model.named_modules(remove_duplicate=False)):
            if name and isinstance(child, (nn.ReLU, nn.LeakyReLU)):
                smooth = SmoothLeakyReLU(getattr(child, "negative_slope", 0.0), width)
                model.set_submodule(name, smooth)
                self._activations.append(smooth)
        self.is_smoother = bool(self._activations)
        self.observation = replace(observation, model=model) if self.is_smoother else observation

    def set_width(self, width: float) -> None:
        for activation in self._activations:
            activation.width = width


@torch.no_grad()  # of the parameters
def determined_share(
    features: Callable[[Tensor], Tensor], inputs: Tensor, generator: torch.Generator
) -> float:
    """The share of the directions in which inputs can change that their features show, 0 to 1.

    With J the derivative of the features h at an input and v ~ N(0, I), the least squares solution
    of J w = J v from w = 0 is the projection of v onto J's row space, so that

        E[1 - ‖w - v‖²/‖v‖²] = rank J / number of entries.

    A limited number of conjugate gradients finds w; a direction that hardly moves the features does
    not count, for nothing could be found along it. The mean over the inputs; where there are fewer
    features than entries, a bound from their number alone.

    >>> halves = lambda x: torch.cat([x[:, :2], x[:, :2]], 1)
    >>> round(determined_share(halves, torch.zeros(500, 4), torch.Generator().manual_seed(0)), 1)
    0.5
    """
    found, pull = vjp(features, inputs)[:2]
    entries, count = inputs[0].numel(), int(found[0].numel())
    if count < entries:
        return count / entries
    push = vjp(lambda slopes: pull(slopes)[0], torch.zeros_like(found))[1]  # v to J v

    def multiply(rows: Tensor) -> Tensor:
        pulled: Tensor = pull(push(rows.view_as(inputs))[0])[0]
        return pulled.flatten(1)

    directions = normal_like(inputs, generator).flatten(1)
    # 60 steps are enough for a condition number of about 10
    seen, _ = conjugate_gradients(multiply, multiply(directions), tolerance=1e-3, max_steps=60)
    missing = (seen - directions).square().sum(1) / directions.square().sum(1)
    return float(1 - missing.mean())


@dataclass(frozen=True)
class Stage:
    """outputs = pool(activation(u)) with u = scale · (W * inputs) + shift, channel by channel."""

    weight: str
    """The name of W in a message."""
    kernel: Tensor
    """W times the scale."""
    shift: Tensor
    scale: Tensor
    padding: tuple[int, int]
    slope: float = 1.0
    """Of the activation below 0; 1 where there is none."""
    pool: int = 1
    """Cells of pool × pool entries, of which the largest counts; 1 where there is no pool."""

    def linear(self, inputs: Tensor) -> Tensor:
        """U without its shift."""
        return conv2d(inputs, self.kernel, padding=self.padding)

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs = leaky_relu(self.linear(inputs) + self.shift.view(-1, 1, 1), self.slope)
        return outputs if self.pool == 1 else max_pool2d(outputs, self.pool)

    def to(self, like: Tensor) -> "Stage":
        kernel, shift, scale = (part.to(like) for part in (self.kernel, self.shift, self.scale))
        return replace(self, kernel=kernel, shift=shift, scale=scale)


def through(stages: Sequence[Stage], inputs: Tensor) -> Tensor:
    for stage in stages:
        inputs = stage(inputs)
    return inputs


def chain_of(observation: Observation, features: Tensor, probe: Tensor) -> list[Stage] | None:
    """The stages between the inputs and these features of a probe; `None` if it is no such chain.

    Convolutions have stride 1 and one group, BatchNorm is in eval mode, activations are ReLU or
    LeakyReLU modules, pools do not overlap. Whatever else happens in the model shows at the end:
    the stages must give the same features.
    """
    stages: list[Stage] = []
    for call in linear_calls(observation, probe, kind=nn.Module)[0]:
        if isinstance(call.layer, nn.Linear):
            break
        if isinstance(call.layer, nn.Conv2d):
            stage = _begun(call)
        else:
            stage = _extended(stages.pop(), call.layer) if stages else None
        if stage is None:
            return None
        stages.append(stage)
    try:
        with torch.no_grad():
            outputs = through(stages, probe).flatten(1)
    except RuntimeError:
        return None
    same = outputs.shape == features.shape and torch.allclose(outputs, features, 1e-3, 1e-5)
    return stages if stages and same else None


def _begun(call: Call) -> Stage | None:
    conv = call.layer
    if isinstance(conv.padding, str):
        return None
    weight = conv.weight.detach()
    shift = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach()
    return Stage(call.weight, weight, shift, torch.ones_like(shift), conv.padding)


def _extended(stage: Stage, module: nn.Module) -> Stage | None:
    """The stage with one more module at its end, or `None`."""
    if isinstance(module, (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)):
        return stage
    if stage.pool > 1:
        return None
    if isinstance(module, nn.MaxPool2d):
        size = module.kernel_size
        return replace(stage, pool=size if isinstance(size, int) else size[0])
    if stage.slope != 1:
        return None
    if isinstance(module, (nn.ReLU, nn.LeakyReLU)):
        return replace(stage, slope=getattr(module, "negative_slope", 0.0))
    if not isinstance(module, nn.BatchNorm2d) or module.training or module.running_var is None:
        return None
    factor = (module.running_var + module.eps).rsqrt()
    factor = factor if module.weight is None else factor * module.weight.detach()
    with torch.no_grad():
        shift = module(stage.shift.view(1, -1, 1, 1)).flatten()
    kernel = stage.kernel * factor.view(-1, 1, 1, 1)
    return replace(stage, kernel=kernel, shift=shift, scale=stage.scale * factor)


def noise_beside(sizes: Tensor, shape: Sequence[int], rank: int) -> float:
    """The root mean square of a matrix' entries without its first `rank` singular values."""
    free = (shape[0] - rank) * (shape[1] - rank)
    return float((sizes[rank:].square().sum() / free).sqrt())
