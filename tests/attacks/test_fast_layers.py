"""The layers of searches against torch's own, in float64 and to the third derivative."""

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn.functional import cross_entropy

from gradveil import NoDefense
from gradveil.attacks import _descent as optimise
from gradveil.attacks import observe
from gradveil.attacks._descent import Descent, minimise, parts_of
from gradveil.attacks._fast_layers import FORWARD, INPUTS, WEIGHT, FastLayers, Geometry
from gradveil.attacks._matching import cosine_distance
from gradveil.messages import GradientMessage, LocalUpdateMessage
from gradveil.models import build_model

LABELS = torch.tensor([0, 2])


class Odd(nn.Module):
    """Strides, groups, dilation, one dimension, BatchNorm without weights, one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2, bias=False)
        self.norm, self.bare = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)
        self.same = nn.Conv2d(4, 4, 3, padding="same")
        self.line = nn.Conv1d(4, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        x = torch.tanh(self.bare(self.grouped(self.grouped(x))))
        return self.line(torch.tanh(self.same(x)).flatten(2)).mean(-1)


def odd(dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = Odd().to(dtype).eval()
        for norm in (model.norm, model.bare):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    return model


def images(dtype: torch.dtype = torch.float64, channels: int = 2, size: int = 8) -> torch.Tensor:
    shape, generator = (2, channels, size, size), torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def derivative(message, inputs, fast, half=False):
    inputs = inputs.clone().requires_grad_()
    with FastLayers(half) if fast else torch.enable_grad() as layers:
        values = message(inputs)
        cost = sum((value.square() * (1 + value)).sum() for value in values.values())
    if not fast:
        return torch.autograd.grad(cost, inputs)[0]
    with layers.last():
        return torch.autograd.grad(cost, inputs)[0]


MESSAGES = {
    "gradient": lambda model: GradientMessage(model, cross_entropy, LABELS),
    "update": lambda model: LocalUpdateMessage(model, cross_entropy, LABELS, lr=0.5, steps=3),
}


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("training", [False, True])
def test_the_derivative_of_a_message_is_torchs(kind, training):
    message = MESSAGES[kind](odd().train(training))
    wanted, found = (derivative(message, images(), fast) for fast in (False, True))
    assert float(wanted.norm()) > 1e-3
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", ["conv-net(width=2)", "res-net(width=2)"])
def test_it_is_torchs_for_whole_models(model):
    message = GradientMessage(build_model(model).double(), cross_entropy, LABELS)
    inputs = images(channels=3, size=32)
    wanted, found = (derivative(message, inputs, fast) for fast in (False, True))
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-12 * float(wanted.abs().max()))


def test_half_precision_touches_only_the_last_derivative():
    model = build_model("conv-net(width=8)")
    message = GradientMessage(model, cross_entropy, LABELS)
    inputs = images(torch.float32, 3, 32)
    wide = GradientMessage(build_model("conv-net(width=8)").double(), cross_entropy, LABELS)
    wanted = derivative(wide, inputs.double(), fast=False)
    full, half = (derivative(message, inputs, True, half).double() for half in (False, True))
    error = [float((found - wanted).norm() / wanted.norm()) for found in (full, half)]
    assert error[0] < 1e-4
    assert 1e-4 < error[1] < 2e-2
    with FastLayers(half=True) as layers, torch.no_grad():
        torch.testing.assert_close(message(inputs), message.values(inputs))
        assert layers.rounded(inputs).dtype == torch.float32


def test_every_derivative_can_be_differentiated_again():
    kernel = torch.randn(2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    scale, shift = torch.rand(2, 2, dtype=torch.float64).requires_grad_().unbind()
    mean, variance = torch.zeros(2, dtype=torch.float64), torch.full((2,), 0.5).double()

    def layers(x, kernel, scale, shift):
        with FastLayers():
            y = torch.conv2d(x, kernel, shift, padding=1)
            return nn.functional.batch_norm(y, mean, variance, scale, shift)

    inputs = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layers, (inputs, kernel, scale, shift))
    assert torch.autograd.gradgradcheck(layers, (inputs, kernel, scale, shift))

    def first(x, kernel):
        return torch.autograd.grad(
            layers(x, kernel, scale.detach(), shift.detach()).pow(3).sum(), kernel,
            create_graph=True,
        )[0]  # fmt: skip

    assert torch.autograd.gradgradcheck(first, (inputs, kernel))


def test_transforms_of_torch_are_left_to_torch():
    kernel, batch = torch.randn(2, 1, 2, 2), torch.randn(3, 2, 1, 4, 4)
    with FastLayers():
        found = vmap(lambda x: torch.conv2d(x, kernel))(batch)
    torch.testing.assert_close(found, torch.stack([torch.conv2d(x, kernel) for x in batch]))


def test_weights_that_are_not_asked_for_are_not_differentiated(monkeypatch):
    parts = []
    compute = Geometry.compute

    def noted(self, part, *given):
        parts.append(part)
        return compute(self, part, *given)

    monkeypatch.setattr(Geometry, "compute", noted)
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.Flatten())
    message = GradientMessage(model, cross_entropy, LABELS)
    derivative(message, images(torch.float32, channels=8, size=5), fast=True)
    forward, first, last = parts[:2], parts[2:5], parts[5:]
    assert forward == [FORWARD, FORWARD]
    assert sorted(first) == [INPUTS, WEIGHT, WEIGHT]  # the inputs' own is not needed
    assert WEIGHT not in last


def test_distances_of_tensors_are_those_of_the_row(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((3, 2), (4,), ())]
    row = torch.cat([p.reshape(-1) for p in parts])
    sent = torch.randn(11, generator=generator, dtype=torch.float64)
    plain = 1 - torch.nn.functional.cosine_similarity(row, sent, dim=0)
    for short in (0, 100):
        monkeypatch.setattr("gradveil.attacks._matching.SHORT", short)
        for values in (row, parts):
            torch.testing.assert_close(cosine_distance(values, sent), plain)
        leaves = [p.clone().requires_grad_() for p in parts]
        assert torch.autograd.gradcheck(lambda *p: cosine_distance(p, sent), leaves)
    rows = torch.stack([row, 2 * row + 1])
    many = vmap(lambda one: cosine_distance(one, sent))(rows)
    torch.testing.assert_close(many, torch.stack([cosine_distance(r, sent) for r in rows]))
    zero = cosine_distance(torch.zeros(11, dtype=torch.float64), sent)
    assert float(zero) == 1.0


@pytest.mark.parametrize("half", [False, True])
def test_a_descent_is_the_same_with_and_without(half, monkeypatch):
    """In float64 to the last digits; in half precision it goes down, too."""
    dtype = torch.float32 if half else torch.float64
    model = build_model("conv-net(width=2)").to(dtype)
    batch = (images(dtype, 3, 32), LABELS)
    observation = observe(model, cross_entropy, batch, NoDefense(), num_classes=10)
    parts = parts_of(observation)
    sent = torch.cat([v.reshape(-1) for v in observation.sent.values()])

    def cost(x, _):
        return cosine_distance(parts(x, LABELS), sent)

    start = images(dtype, 3, 32).flip(0)[None]
    monkeypatch.setattr(optimise, "has_half", lambda: half)
    fast = minimise(cost, start, Descent(12, 0.1, "signed-adam"))

    class Plain(FastLayers):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(optimise, "FastLayers", Plain)
    plain = minimise(cost, start, Descent(12, 0.1, "signed-adam"))
    for found in (plain, fast):
        assert float(found.costs) < 0.9 * float(cost(start[0], 0.0))
    if not half:  # signs of entries near 0 differ in half precision, and the paths part
        torch.testing.assert_close(fast.inputs, plain.inputs, rtol=0, atol=1e-9)
