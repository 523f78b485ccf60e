"""Models and losses that take derivatives by themselves: their weights have a part in these."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage
from gradveil.messages import ClippedMessage
from gradveil.sensitivity import Exact, measure
from gradveil.sensitivity._structured import TangentGraph

from . import hostile

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning"),
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad:UserWarning"),
]


class Penalised(hostile.Net):
    """By the slope of what it says with respect to a feature."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        out = self.second(h)
        (slope,) = torch.autograd.grad(out.square().sum(), h, create_graph=True)
        return out * (1 + slope.square().sum(1, keepdim=True))


class PenalisedBackward(hostile.Net):
    """By `backward`, into a tensor of its own."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        shift = torch.zeros_like(h, requires_grad=True)
        out = self.second(h + shift)
        torch.autograd.backward(out.square().sum(), create_graph=True, inputs=[shift])
        return out * (1 + shift.grad.square().sum(1, keepdim=True))


class Jacobian(hostile.Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return torch.autograd.functional.jacobian(
            lambda q: self.second(q.square()).sum(0), h, create_graph=True
        ).sum(0)


class Tangent(hostile.Net):
    def forward(self, x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            dual = super().forward(forward_ad.make_dual(x, torch.ones_like(x)))
            return forward_ad.unpack_dual(dual).tangent


class TangentOfATransform(hostile.Net):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.func.jvp(super().forward, (x,), (torch.ones_like(x),))[1]
        return found


class SlopeOfATransform(hostile.Net):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        slope = torch.func.grad(lambda q: self.second(q).square().sum())(h)
        return self.second(h) * (1 + slope.square().sum(1, keepdim=True))


class Only(hostile.Net):
    """For the engine itself, which no function of torch stands before."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        out = self.second(h)
        (slope,) = torch.autograd.graph._engine_run_backward(
            (out.square().sum(),), (torch.ones(()),), True, True, (h,), allow_unreachable=True,
            accumulate_grad=False,
        )  # fmt: skip
        return out * (1 + slope.square().sum(1, keepdim=True))


MODELS: tuple[Callable[[], nn.Module], ...] = (
    Penalised, PenalisedBackward, Jacobian, Tangent, TangentOfATransform, SlopeOfATransform, Only,
)  # fmt: skip
EXAMPLES = 4


class KeepsAFeature(hostile.Net):
    def between(self, h: Tensor) -> Tensor:
        self.feature = h
        return h


def slope_loss(model: nn.Module, outputs: Tensor, labels: Tensor) -> Tensor:
    """With a penalty of the slope of the outputs."""
    (slope,) = torch.autograd.grad(outputs.square().sum(), model.feature, create_graph=True)
    return cross_entropy(outputs, labels) + slope.square().sum(1).mean()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(EXAMPLES, 4, generator=generator), torch.arange(EXAMPLES) % 3


def check(model: nn.Module, loss) -> None:
    inputs, labels = data()
    total, clip = 0.0, 0.05
    for x, y in zip(inputs.split(1), labels.split(1), strict=True):
        own = [*model.parameters()]
        found = torch.autograd.grad(
            loss(model(x), y), own, allow_unused=True, materialize_grads=True
        )
        g = torch.cat([one.flatten() for one in found])
        total = total + g * min(1.0, clip / float(g.norm()))
    message = GradientMessage(model, loss, labels)
    values = ClippedMessage(message, clip, batch_size=1).values(inputs)
    sent = torch.cat([value.flatten() for value in values.values()])
    torch.testing.assert_close(sent, total, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_weights_have_their_part_in_derivatives_of_the_model(build):
    torch.manual_seed(0)
    check(build(), cross_entropy)


def test_weights_have_their_part_in_derivatives_of_the_loss():
    torch.manual_seed(0)
    model = KeepsAFeature()
    check(model, partial(slope_loss, model))


@pytest.mark.parametrize("build", [Penalised, PenalisedBackward, Jacobian, Tangent])
def test_gradients_of_sensitivities_have_these_parts(build):
    torch.manual_seed(0)
    model = build()
    inputs, labels = data()
    found = dict(TangentGraph(GradientMessage(model, cross_entropy, labels), inputs).gradients())
    own = dict(model.named_parameters())
    alone = torch.autograd.grad(
        cross_entropy(model(inputs), labels), [*own.values()], materialize_grads=True,
        allow_unused=True,
    )  # fmt: skip
    for name, value in zip(own, alone, strict=True):
        torch.testing.assert_close(found.get(name, torch.zeros_like(value)), value)


@pytest.mark.parametrize("build", [Jacobian, Tangent])
def test_sensitivities_have_these_parts(build):
    torch.manual_seed(0)
    inputs, labels = data()
    message = GradientMessage(build(), cross_entropy, labels)
    squares = measure(message, inputs).known_squared_sensitivities["second.weight"]
    exact = measure(message, inputs, Exact()).known_squared_sensitivities["second.weight"]
    assert 0.3 < float(squares.sum() / exact.sum()) < 3
