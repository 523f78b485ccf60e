"""A model as a chain: convolutions, each with its normalisation, activation and pool."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, leaky_relu, max_pool2d

from gradveil.messages import FunctionalLoss

from .._observation import Observation

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
    stages = _stages(_called(observation, probe))
    if not stages:
        return None
    outputs = probe
    try:
        with torch.no_grad():
            for stage in stages:
                outputs = stage(outputs)
    except RuntimeError:
        return None
    outputs = outputs.flatten(1)
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


def _called(observation: Observation, probe: Tensor) -> list[tuple[str, nn.Module]]:
    """The innermost modules in the order in which they run."""
    loss = FunctionalLoss(observation.model, observation.loss_fn, seed=0)
    with _recorded(observation.model) as calls, torch.no_grad():
        loss.outputs(loss.parameters, probe)
    return calls


@contextmanager
def _recorded(model: nn.Module) -> Iterator[list[tuple[str, nn.Module]]]:
    calls: list[tuple[str, nn.Module]] = []
    leaves = [(n, m) for n, m in model.named_modules() if not list(m.children())]

    def hook(name: str) -> Any:
        return lambda module, *_: calls.append((name, module))

    handles = [module.register_forward_hook(hook(name)) for name, module in leaves]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
