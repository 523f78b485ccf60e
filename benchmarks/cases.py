"""The models and batches on which contenders are compared, and the memory of a run."""

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from gradveil.data import Dataset, load_dataset
from gradveil.messages import GradientMessage, LocalUpdateMessage, trainable_parameters
from gradveil.models import build_model
from gradveil.sensitivity import Estimator, Moments, PerExample, Sketch, measure
from gradveil.shapes import Shape


@dataclass(frozen=True)
class Case:
    """One model at one batch."""

    name: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    graded: bool = True
    """Whether the share of the optimum is computed, which needs accurate sensitivities."""

    @property
    def message(self) -> GradientMessage | LocalUpdateMessage:
        """The gradient of the batch."""
        return GradientMessage(self.model, cross_entropy, self.targets)

    def reference(self, probes: int) -> Moments:
        """Unbiased sensitivities from many probes: what stands for the exact ones."""
        generator = torch.Generator().manual_seed(12345)
        return measure(self.message, self.inputs, self._reference(probes), generator=generator)

    def _reference(self, probes: int) -> Estimator:
        """So many for a batch of 64. Examples count like probes: smaller batches get more."""
        return PerExample(probes * max(1, 64 // len(self.inputs)))

    def plain_gradient(self) -> None:
        """The baseline: one `loss.backward()`."""
        self.model.zero_grad(set_to_none=True)
        cross_entropy(self.model(self.inputs), self.targets).backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class UpdateCase(Case):
    """A FedAvg update of five local steps."""

    @property
    def message(self) -> LocalUpdateMessage:
        """The weight change of the batch."""
        return LocalUpdateMessage(self.model, cross_entropy, self.targets, lr=0.01, steps=5)

    def _reference(self, probes: int) -> Estimator:
        """Probes of the whole batch: examples do not add up in an update."""
        return Sketch(10 * probes)

    def plain_gradient(self) -> None:
        """The baseline: five steps of SGD on a copy of the model."""
        model = deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(self.inputs), self.targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def update_cases(mnist: str = "mnist") -> Iterator[Case]:
    """The paper's CNN sending FedAvg updates."""
    batch = load_dataset(mnist).batch(0, 16)
    yield UpdateCase("MNIST CNN, update of 5 steps", build_model("simple-conv-net"), *batch)


def paper_cases(mnist: str = "mnist", cifar: str = "cifar10", steps: int = 60) -> Iterator[Case]:
    """The paper's models, fresh and after `steps` Adam steps on batches of 64.

    The 20 embedded CIFAR-10 images are too few to train on: a model that knows them by heart has no
    gradient left to compare. Give the official files, or a part of them, for that.
    """
    images, pictures = load_dataset(mnist), load_dataset(cifar, normalization="cifar10")
    for trained in (False, True):
        state = f"after {steps} steps" if trained else "fresh"
        model = build_model("simple-conv-net")
        if trained:
            train(model, images, steps)
        for size in (16, 64):
            yield Case(f"MNIST CNN, {state}", model, *images.batch(0, size))
        model = build_model("conv-net", width=16)
        if trained and len(pictures) < 64:
            return
        if trained:
            train(model, pictures, steps)
        for size in (2, 8):
            yield Case(f"CIFAR ConvNet-16, {state}", model, *pictures.batch(0, size))


def large_cases(batch: int = 8) -> Iterator[Case]:
    """Transformers from 0.1 M to 30 M parameters on random 32×32 images, for the cost alone."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(batch, 3, 32, 32, generator=generator)
    targets = torch.randint(10, (batch,), generator=generator)
    for width, depth in ((64, 2), (256, 4), (640, 6)):
        model = build_model("patch-transformer", width=width, depth=depth)
        count = sum(p.numel() for p in model.parameters())
        yield Case(f"transformer, {count / 1e6:.1f} M", model, inputs, targets, graded=False)


def some_shape(model: nn.Module) -> Shape:
    """Any levels from 0.1 to 1 for the rows and columns of matrices, and entries of vectors."""
    return Shape({name: _levels(p) for name, p in trainable_parameters(model).items()})


def _levels(parameter: Tensor) -> tuple[Tensor, ...]:
    sizes = [(len(parameter), *[1] * (parameter.dim() - 1)), (1, *parameter.shape[1:])]
    some = [torch.linspace(0.1, 1.0, torch.Size(size).numel()).view(size) for size in sizes]
    return tuple(some[: min(2, parameter.dim())])


def train(model: nn.Module, data: Dataset, steps: int) -> None:
    """Adam at 1e-3 on consecutive batches of 64, or on all examples where there are fewer."""
    size = min(64, len(data))
    starts = range(0, len(data) - size + 1, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for start in islice(cycle(starts), steps):
        inputs, targets = data.batch(start, size)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def peak_of(job: Callable[[], object]) -> int:
    """The most bytes of tensors alive at once in a run, beyond what there was when it began."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells of each start and end otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        job()
    assert seen.profiler is not None
    found: Any = seen.profiler.kineto_results
    events = [event for event in found.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live = max(0, live + event.nbytes())  # below 0: what there was is freed first
        peak = max(peak, live)
    return peak
