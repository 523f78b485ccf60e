"""Ways to a private gradient: with `PrivateNoise` of two shapes, and with Opacus."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil._extras import require
from gradveil.data import Dataset
from gradveil.defenses import PrivateNoise
from gradveil.messages import GradientMessage
from gradveil.plans import Shape, rms_shape
from gradveil.studies.runner import Settings

Gradient = Callable[[int, Tensor, Tensor], None]
"""Put the gradient of these inputs and targets into `.grad`; the step's number comes first."""


@dataclass(frozen=True)
class Training:
    """What every way has: the model, the public data, the amount of noise and where it is from."""

    net: nn.Module
    data: Dataset
    settings: Settings
    multiplier: float
    noise: torch.Generator


def plain(training: Training) -> Gradient:
    """Neither clipped nor noised."""

    def gradient(step: int, inputs: Tensor, targets: Tensor) -> None:
        training.net.zero_grad(set_to_none=True)
        cross_entropy(training.net(inputs), targets).backward()  # type: ignore[no-untyped-call]

    return gradient


def isotropic(training: Training) -> Gradient:
    """`PrivateNoise` without a shape: DP-SGD."""
    return _with_shapes(training, lambda: None)


def shaped(training: Training) -> Gradient:
    """`PrivateNoise` whose shape is made from public examples at the weights of the moment."""
    public = training.settings["public"]
    inputs, targets = training.data.batch(public["start"], public["count"])
    message = GradientMessage(training.net, cross_entropy, targets)
    return _with_shapes(training, lambda: rms_shape(message, inputs))


def opacus(training: Training) -> Gradient:
    """Opacus with hooks; it adds the noise of its own to the same samples."""
    require("the comparison", "opacus", "opacus")
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    hooked = GradSampleModule(deepcopy(training.net).train())
    optimizer = DPOptimizer(
        torch.optim.SGD(hooked.parameters(), lr=1.0),  # it never steps
        noise_multiplier=training.multiplier,
        max_grad_norm=training.settings["clip"],
        expected_batch_size=training.settings["batch_size"],
        generator=training.noise,
    )
    pairs = [*zip(training.net.parameters(), hooked.parameters(), strict=True)]

    def gradient(step: int, inputs: Tensor, targets: Tensor) -> None:
        with torch.no_grad():
            for own, theirs in pairs:
                theirs.copy_(own)
        optimizer.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks on a model whose inputs have no gradient
            cross_entropy(hooked(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.pre_step()
        for own, theirs in pairs:
            own.grad = theirs.grad

    return gradient


def opacus_epsilon(multiplier: float, rate: float, steps: int, delta: float) -> float:
    """ε as Opacus' users get it."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(multiplier, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta=delta))


WAYS: dict[str, Callable[[Training], Gradient]] = {
    "plain": plain,
    "isotropic": isotropic,
    "shaped": shaped,
    "opacus": opacus,
}


def _with_shapes(training: Training, shape_now: Callable[[], Shape | None]) -> Gradient:
    settings = training.settings
    refresh, defense = settings["public"]["refresh"], None

    def gradient(step: int, inputs: Tensor, targets: Tensor) -> None:
        nonlocal defense
        if defense is None or step % refresh == 0:
            defense = PrivateNoise(
                training.multiplier,
                settings["clip"],
                shape_now(),
                batch_size=settings["batch_size"],
            )
        training.net.zero_grad(set_to_none=True)
        defense.backward(training.net, cross_entropy, inputs, targets, training.noise)

    return gradient
