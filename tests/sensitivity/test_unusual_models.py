"""Models and batches on which the fast estimator once went wrong."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientMessage, measure
from gradveil.models import build_model
from gradveil.sensitivity import Exact, Measurement, Structured
from gradveil.sensitivity._structured import Layout, layout_of

cross_entropy = nn.functional.cross_entropy


def made(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("margin", [47.0, 57.0, 68.0, 85.0])
def test_one_confident_example_beside_ordinary_ones(margin: float):
    """Its input gradient is so small that the square of its norm is 0."""
    model = made(lambda: nn.Linear(6, 3))
    inputs = drawn(4, 6)
    with torch.no_grad():
        model.weight[:, 5] = torch.tensor([1.0, 0.0, 0.0])
        inputs[:, 5] = torch.tensor([margin, 0.0, 0.0, 0.0])
    message = GradientMessage(model, cross_entropy, torch.tensor([0, 1, 2, 0]))
    exact = measure(message, inputs, Exact())
    for seed in range(5):
        found = measure(message, inputs, generator=torch.Generator().manual_seed(seed))
        for name, squares in exact.known_squared_sensitivities.items():
            assert 0.5 < float(found.known_squared_sensitivities[name].sum() / squares.sum()) < 2


def test_a_model_that_draws_is_not_cut(monkeypatch):
    """Each part would draw the first examples' numbers."""
    monkeypatch.setattr(Layout, "examples_at_a_time", lambda *_: 1)
    model = made(lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    inputs = drawn(4, 5)
    message = GradientMessage(model, cross_entropy, torch.arange(4) % 3, separable=True)
    found = measure(message, inputs, Structured())
    for name, value in message(inputs).items():
        torch.testing.assert_close(found.squared_values[name], value.square())


def test_a_model_that_squeezes_a_single_row_is_cut(monkeypatch):
    class Squeezing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).squeeze()

    monkeypatch.setattr(Layout, "examples_at_a_time", lambda *_: 1)
    inputs, targets = drawn(4, 5).double(), torch.arange(4) % 3
    models = [made(lambda: Squeezing(5, 3)).double(), made(lambda: nn.Linear(5, 3)).double()]
    found, expected = (
        measure(
            GradientMessage(model, cross_entropy, targets, separable=True),
            inputs,
            Structured(),
            generator=torch.Generator().manual_seed(0),
        )
        for model in models
    )
    for name, squares in expected.known_squared_sensitivities.items():
        torch.testing.assert_close(found.known_squared_sensitivities[name], squares)


def test_large_outputs_are_not_cut():
    """Every part computes the loss of all outputs."""
    model = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 500)))
    layout = layout_of(GradientMessage(model, cross_entropy, torch.arange(3)), drawn(3, 4))
    assert layout.outputs == 500
    assert layout.examples_at_a_time(3) == sys.maxsize
    images = build_model("simple-conv-net")
    layout = layout_of(GradientMessage(images, cross_entropy, torch.arange(3)), drawn(3, 1, 28, 28))
    assert layout.outputs == 10
    assert layout.examples_at_a_time(3) < 1000


def test_a_perfect_fit():
    """No signal, so that no layer has any mass."""
    model = made(lambda: nn.Linear(5, 3))
    inputs = drawn(4, 5)
    message = GradientMessage(model, nn.functional.mse_loss, model(inputs).detach())
    exact = measure(message, inputs, Exact())
    found = measure(message, inputs, Structured(8), generator=torch.Generator().manual_seed(0))
    ratio = (
        found.known_squared_sensitivities["weight"].sum()
        / exact.known_squared_sensitivities["weight"].sum()
    )
    assert 0.5 < float(ratio) < 2


class Routed(nn.Module):
    """Examples go to one of two experts by the sign of their first entry."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, 0] > 0
        out = x.new_zeros(len(x), 3)
        for chosen, expert in zip((first, ~first), self.experts, strict=True):
            out = out.index_add(0, chosen.nonzero()[:, 0], expert(x[chosen]))
        return out


def test_layers_that_see_some_of_the_examples():
    inputs = drawn(6, 5)
    inputs[:, 0] = torch.tensor([1.0, 2.0, -1.0, 1.0, -2.0, 1.0])
    message = GradientMessage(made(Routed), cross_entropy, torch.arange(6) % 3)
    exact = measure(message, inputs, Exact())
    found = measure(message, inputs, Structured(32), generator=torch.Generator().manual_seed(0))
    for name, squares in exact.known_squared_sensitivities.items():
        assert 0.5 < float(found.known_squared_sensitivities[name].sum() / squares.sum()) < 2


def test_an_estimator_that_returns_other_names_is_told_so():
    model = made(lambda: nn.Linear(5, 3))
    message = GradientMessage(model, cross_entropy, torch.arange(3))

    def wrong(message: GradientMessage, inputs: Tensor, _: torch.Generator) -> Measurement:
        return Measurement(message.values(inputs), {"nope": torch.ones(1)})

    with pytest.raises(ValueError, match="should have the names"):
        measure(message, drawn(3, 5), wrong)
