import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, GradientNoise
from gradveil.attacks import Fishing, Imprint
from gradveil.federated import Client, ModelGuard, RefusedError
from gradveil.models import build_model


def message_of(model, shape=(1, 28, 28)):
    return GradientMessage(model, cross_entropy, torch.zeros(3, dtype=torch.long)), torch.zeros(
        3, *shape
    )


def perceptron(width=64, entries=784):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(entries, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip


def public():
    brightness = torch.linspace(0, 1, 100).view(-1, 1, 1, 1)
    return brightness * torch.rand(100, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def rare_units():
    model = perceptron(200)
    with torch.no_grad():
        model[1].bias.fill_(-2.3)
    return model


def disguised():
    planted = Imprint(64).plant(perceptron(), public())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (planted.imprint.weight, planted.spread.weight):
            weight.mul_(1 + 0.2 * torch.randn(weight.shape, generator=generator))
    return planted


class Disguise(nn.Module):
    """An imprinted net whose first layer is kernels as large as the image, or has an axis more."""

    def __init__(self, kind):
        super().__init__()
        planted = Imprint(64).plant(perceptron(), public())
        self.kind, self.model = kind, planted.model
        self.first = planted.imprint if kind == "axis" else nn.Conv2d(1, 64, 28)
        self.back = nn.ConvTranspose2d(64, 1, 28, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(planted.imprint.weight.view_as(self.first.weight))
            self.first.bias.copy_(planted.imprint.bias)
            self.back.weight.fill_(1 / 64)

    def forward(self, x):
        h = self.first(x.flatten(1).unsqueeze(1)) if self.kind == "axis" else self.first(x)
        return self.model(x + self.back(h.relu().view(len(x), 64, 1, 1)))


HONEST = {
    "perceptron": lambda: (perceptron(), (1, 28, 28)),
    "simple-conv-net": lambda: (build_model("simple-conv-net", seed=0), (1, 28, 28)),
    "conv-net": lambda: (build_model("conv-net(width=4)", seed=0), (3, 32, 32)),
    "transformer": lambda: (build_model("patch-transformer", seed=0), (3, 32, 32)),
    "few features": lambda: (perceptron(300, 2), (2,)),
}
PLANTED = {
    "imprint": (lambda: Imprint(64).plant(perceptron(), public()), "point the same way"),
    "disguised imprint": (disguised, "point the same way"),
    "kernels": (lambda: Disguise("kernels"), "rows of `first.weight` that point the same way"),
    "another axis": (lambda: Disguise("axis"), "rows of `first.weight` that point the same way"),
    "fishing": (lambda: Fishing(3).plant(perceptron()), "learns from 1.% of made-up"),
    "trap weights": (rare_units, "learns from 1.% of made-up"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_pass(name):
    model, shape = HONEST[name]()
    ModelGuard().check(*message_of(model, shape))


def test_a_trained_model_passes():
    model, generator = perceptron(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    centres = torch.randn(10, 784, generator=generator)
    for _ in range(60):
        labels = torch.randint(10, (32,), generator=generator)
        optimizer.zero_grad()
        noise = torch.randn(32, 784, generator=generator)
        cross_entropy(model(centres[labels] + noise), labels).backward()
        optimizer.step()
    ModelGuard().check(*message_of(model))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_models_are_refused(name):
    make, sign = PLANTED[name]
    with pytest.raises(RefusedError, match=sign):
        ModelGuard().check(*message_of(make()))


def test_the_data_has_no_say():
    message, inputs = message_of(perceptron())
    spoiled = torch.full_like(inputs, float("nan"))
    guard = ModelGuard(most_parallel=1, least_effective=1.0)
    assert list(guard.signs(message, inputs)) == list(guard.signs(message, spoiled))


def test_a_client_with_a_guard_does_not_answer():
    inputs, targets = torch.rand(8, 1, 28, 28), torch.arange(8)
    client = Client(
        0, inputs, targets, GradientNoise(0.1), batch_size=4, seed=0, guard=ModelGuard()
    )
    client.reply(perceptron(), cross_entropy)
    with pytest.raises(RefusedError, match="Nothing was sent"):
        client.reply(Fishing(3).plant(perceptron()), cross_entropy)


class OfSlopes(nn.Linear):
    """Takes derivatives by itself."""

    def forward(self, x):
        with forward_ad.dual_level():
            dual = super().forward(forward_ad.make_dual(x, torch.ones_like(x)))
            return forward_ad.unpack_dual(dual.square()).tangent


def test_a_model_of_which_no_layer_is_known():
    message = GradientMessage(OfSlopes(4, 3), cross_entropy, torch.tensor([0, 1]))
    assert list(ModelGuard().signs(message, torch.ones(2, 4))) == []
