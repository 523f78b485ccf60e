"""The layers of a model as attacks see them: linear ones, chains of convolutions, smooth twins."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, leaky_relu, max_pool2d

from gradveil._random import normal_like
from gradveil._solve import conjugate_gradients
from gradveil._typing import Tensors
from gradveil.messages import FunctionalLoss, TokenGradient, random_ids

from ._observation import Observation


@dataclass(frozen=True)
class Call:
    """One linear layer at work."""

    name: str
    layer: nn.Linear
    inputs: Tensor

    @property
    def weight(self) -> str:
        """The name of its weight in a message."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def bias(self) -> str:
        """The name of its bias in a message."""
        return f"{self.name}.bias" if self.name else "bias"


def linear_calls(
    observation: Observation, inputs: Tensor, parameters: Tensors | None = None
) -> tuple[list[Call], Tensor]:
    """The calls of linear layers in the order in which they happen, and the model's outputs."""
    loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)
    linear = [(n, m) for n, m in observation.model.named_modules() if isinstance(m, nn.Linear)]
    with recorded(linear) as calls, torch.no_grad():
        outputs = loss.outputs(parameters or loss.parameters, inputs)
    return [Call(name, layer, read.detach()) for name, layer, read in calls], outputs  # type: ignore[arg-type]


def input_layer(observation: Observation, generator: torch.Generator) -> Call | None:
    """The first linear layer, if it reads the inputs themselves, flattened or not."""
    probe = random_inputs(observation, 2, generator)
    for call in linear_calls(observation, probe)[0][:1]:
        if call.inputs.numel() == probe.numel() and torch.equal(
            call.inputs.flatten(), probe.flatten()
        ):
            return call
    return None


def last_layer(calls: list[Call], observation: Observation) -> Call:
    """The last linear layer that makes one number for each class and whose weight was sent."""
    for call in reversed(calls):
        fits = call.layer.out_features == observation.num_classes
        if fits and call.weight in observation.sent:
            return call
    layers = [f"{c.name} ({c.layer.in_features} to {c.layer.out_features})" for c in calls]
    raise ValueError(
        f"Parameter `observation.model` should end in a trainable `nn.Linear` with"
        f" {observation.num_classes} outputs, from whose gradient labels are read. Found linear"
        f" layers {layers or 'none'}. Grant the labels: `ThreatModel(labels='known')`."
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
    drawn = normal_like(blank, generator)
    for bound, cut in ((observation.low, torch.maximum), (observation.high, torch.minimum)):
        if bound is not None:
            drawn = cut(drawn, bound.to(drawn))
    return drawn


@contextmanager
def recorded(
    modules: Iterable[tuple[str, nn.Module]],
) -> Iterator[list[tuple[str, nn.Module, Tensor]]]:
    """Watch modules at work: the name, the module and what it reads, in the order of the calls."""
    calls: list[tuple[str, nn.Module, Tensor]] = []

    def hook(name: str) -> Callable[..., None]:
        return lambda module, arguments: calls.append((name, module, arguments[0]))

    handles = [module.register_forward_pre_hook(hook(name)) for name, module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def random_examples(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """Smooth images, or normal numbers where the inputs are no images."""
    image = len(observation.input_shape) == 3
    return (smooth_images if image else random_inputs)(observation, count, generator)


def smooth_images(observation: Observation, count: int, generator: torch.Generator) -> Tensor:
    """Random images with the spectrum of photographs, 1/f² in power, mostly grey, in the range.

    They stand for all that an attacker has not seen: no image of any data set goes into them.
    """
    blank = random_inputs(observation, count, generator)
    channels, rows, columns = blank.shape[1:]
    shape = (count, channels + 1, 2 * rows, 2 * columns)
    noise = normal_like(blank.new_empty(shape), generator)
    noise = noise[:, 1:] * 0.4 + noise[:, :1]
    frequency = _frequencies(noise)
    drawn: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / frequency).real[..., :rows, :columns]
    drawn = drawn / drawn.std()
    if observation.low is None or observation.high is None:
        return drawn
    low, high = observation.low.to(drawn), observation.high.to(drawn)
    return ((low + high) / 2 + drawn * (high - low) / 4).clamp(low, high)


def _frequencies(like: Tensor) -> Tensor:
    rows, columns = (torch.fft.fftfreq(n, dtype=like.dtype) for n in like.shape[-2:])
    sizes = (rows[:, None].square() + columns.square()).sqrt()
    least: Tensor = sizes.clamp(min=1 / max(like.shape[-2:])).to(like.device)
    return least


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
        """The activation, entry by entry."""
        gate = torch.sigmoid(inputs / self.width)
        return inputs * (self.slope + (1 - self.slope) * gate)


class SmoothTwin:
    """An observation whose model has smooth activations of a width that can be set.

    Modules of the classes ReLU and LeakyReLU are replaced in a copy; a model without them (or that
    calls them as functions) is its own twin, and `is_smoother` is False.
    """

    def __init__(self, observation: Observation, width: float) -> None:
        model = copy.deepcopy(observation.model)
        self._activations = _replace_activations(model, width)
        self.is_smoother = bool(self._activations)
        self.observation = replace(observation, model=model) if self.is_smoother else observation

    def set_width(self, width: float) -> None:
        """Make the activations this smooth."""
        for activation in self._activations:
            activation.width = width


def _replace_activations(module: nn.Module, width: float) -> list[SmoothLeakyReLU]:
    made: list[SmoothLeakyReLU] = []
    for name, child in module.named_children():
        if isinstance(child, (nn.ReLU, nn.LeakyReLU)):
            slope = child.negative_slope if isinstance(child, nn.LeakyReLU) else 0.0
            made.append(SmoothLeakyReLU(slope, width))
            setattr(module, name, made[-1])
        else:
            made += _replace_activations(child, width)
    return made


def determined_share(
    features: Callable[[Tensor], Tensor], inputs: Tensor, generator: torch.Generator
) -> float:
    """The share of the directions in which inputs can change that their features show, 0 to 1.

    With J the derivative of the features h at an input and v ~ N(0, I), the least squares solution
    of J w = J v from w = 0 is the projection of v onto J's row space, so that

        E[1 - ‖w - v‖²/‖v‖²] = rank J / number of entries.

    A limited number of conjugate gradients finds w; a direction that hardly moves the features does
    not count, for nothing could be found along it. The mean over the inputs; where there are fewer
    features than entries, a bound from their number alone. Features without a derivative show
    nothing.

    >>> halves = lambda x: torch.cat([x[:, :2], x[:, :2]], 1)
    >>> round(determined_share(halves, torch.zeros(500, 4), torch.Generator().manual_seed(0)), 1)
    0.5
    """
    inputs = inputs.detach().requires_grad_()
    with torch.enable_grad():
        found = features(inputs)
        entries, count = inputs[0].numel(), found[0].numel()
        if count < entries:
            return count / entries
        if not found.requires_grad:
            return 0.0
        multiply = _normal_matrix(found, inputs)
    directions = normal_like(inputs.detach(), generator).flatten(1)
    # 60 steps are enough for a condition number of about 10
    seen, _ = conjugate_gradients(multiply, multiply(directions), tolerance=1e-3, max_steps=60)
    missing = (seen - directions).square().sum(1) / directions.square().sum(1)
    return float(1 - missing.mean())


def _normal_matrix(found: Tensor, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """v to JᵀJ v, a row for each input; the graph is made once.

    J v is the derivative of Jᵀu with respect to u.
    """
    blank = torch.zeros_like(found, requires_grad=True)
    (pulled,) = torch.autograd.grad(found, inputs, blank, create_graph=True)

    def multiply(directions: Tensor) -> Tensor:
        shaped = directions.view_as(inputs)
        (pushed,) = torch.autograd.grad(pulled, blank, shaped, retain_graph=True)
        (back,) = torch.autograd.grad(found, inputs, pushed, retain_graph=True)
        return back.flatten(1)

    return multiply


_PASSING = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)


@dataclass(frozen=True)
class Stage:
    """outputs = pool(activation(u)) with u = scale · (W * inputs) + shift, channel by channel."""

    name: str
    """Of the convolution."""
    kernel: Tensor
    """W times the scale."""
    shift: Tensor
    scale: Tensor
    padding: tuple[int, int]
    slope: float
    """Of the activation below 0; 1 where there is none."""
    pool: int
    """Cells of pool × pool entries, of which the largest counts; 1 where there is no pool."""

    @property
    def weight(self) -> str:
        """The name of the convolution's weight in a message."""
        return f"{self.name}.weight" if self.name else "weight"

    def linear(self, inputs: Tensor) -> Tensor:
        """U without its shift."""
        return conv2d(inputs, self.kernel, padding=self.padding)

    def before_pool(self, inputs: Tensor) -> Tensor:
        """What the activation makes of u."""
        return leaky_relu(self.linear(inputs) + self.shift.view(-1, 1, 1), self.slope)

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs."""
        outputs = self.before_pool(inputs)
        return outputs if self.pool == 1 else max_pool2d(outputs, self.pool)

    def to(self, like: Tensor) -> "Stage":
        """In the precision of a tensor."""
        kernel, shift, scale = (part.to(like) for part in (self.kernel, self.shift, self.scale))
        return replace(self, kernel=kernel, shift=shift, scale=scale)


def chain_of(observation: Observation, features: Tensor, probe: Tensor) -> list[Stage] | None:
    """The stages between the inputs and these features of a probe; `None` if it is no such chain.

    Convolutions have stride 1 and one group, BatchNorm is in eval mode, activations are ReLU or
    LeakyReLU modules, pools do not overlap. Whatever else happens in the model, the stages must
    give the same features.
    """
    loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)
    leaves = [(n, m) for n, m in observation.model.named_modules() if not list(m.children())]
    with recorded(leaves) as calls, torch.no_grad():
        loss.outputs(loss.parameters, probe)
    stages = _stages([(name, module) for name, module, _ in calls])
    if not stages:
        return None
    try:
        with torch.no_grad():
            outputs = through(stages, probe).flatten(1)
    except RuntimeError:
        return None
    same = outputs.shape == features.shape and torch.allclose(outputs, features, 1e-3, 1e-5)
    return stages if same else None


def _stages(modules: list[tuple[str, nn.Module]]) -> list[Stage] | None:
    """Read in the order of the calls, up to the first linear layer."""
    stages: list[Stage] = []
    for name, module in modules:
        if isinstance(module, nn.Linear):
            return stages
        if isinstance(module, nn.Conv2d):
            stage = _begin(name, module)
        else:
            stage = _extend(stages.pop(), module) if stages else None
        if stage is None:
            return None
        stages.append(stage)
    return None


def _begin(name: str, conv: nn.Conv2d) -> Stage | None:
    plain = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.groups == 1
    if not plain or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return None
    weight = conv.weight.detach()
    shift = weight.new_zeros(len(weight)) if conv.bias is None else conv.bias.detach()
    rows, columns = conv.padding
    return Stage(name, weight, shift, torch.ones_like(shift), (rows, columns), 1.0, 1)


def _extend(stage: Stage, module: nn.Module) -> Stage | None:
    """The stage with one more module at its end, or `None`."""
    if isinstance(module, _PASSING):
        return stage
    if stage.pool > 1:
        return None
    if isinstance(module, nn.MaxPool2d):
        return _pooled(stage, module)
    if stage.slope != 1:
        return None
    kernel, shift, scale = stage.kernel, stage.shift, stage.scale
    if isinstance(module, nn.BatchNorm2d):
        if module.training or module.running_var is None or module.running_mean is None:
            return None
        factor = (module.running_var + module.eps).rsqrt()
        factor = factor if module.weight is None else factor * module.weight.detach()
        shift = (shift - module.running_mean) * factor
        shift = shift if module.bias is None else shift + module.bias.detach()
        kernel, scale = kernel * factor.view(-1, 1, 1, 1), scale * factor
        return replace(stage, kernel=kernel, shift=shift, scale=scale)
    if isinstance(module, (nn.ReLU, nn.LeakyReLU)):
        slope = module.negative_slope if isinstance(module, nn.LeakyReLU) else 0.0
        return replace(stage, slope=slope)
    return None


def _pooled(stage: Stage, pool: nn.MaxPool2d) -> Stage | None:
    sizes = {_pair(pool.kernel_size), _pair(pool.stride)}
    if len(sizes) > 1 or _pair(pool.padding) != (0, 0) or pool.ceil_mode:
        return None
    rows, columns = sizes.pop()
    return replace(stage, pool=rows) if rows == columns else None


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def through(stages: Sequence[Stage], inputs: Tensor) -> Tensor:
    """What the stages make of the inputs."""
    for stage in stages:
        inputs = stage(inputs)
    return inputs


@contextmanager
def hooked(module: nn.Module, hook: Callable[..., Any]) -> Iterator[None]:
    """With a forward hook; what it returns takes the place of the outputs."""
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
        with recorded([(name, layer)]) as calls:
            loss.outputs(parameters or loss.parameters, inputs)
        return calls[0][2]

    return features
