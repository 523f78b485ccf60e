"""Moments from the model alone: nothing of the private batch enters."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from gradveil import GradientMessage, LocalUpdateMessage, OptimalNoise
from gradveil.messages import Message
from gradveil.models import build_model
from gradveil.shapes import model_given


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_message(seed: int, kind: str = "gradient") -> tuple[Message, torch.Tensor]:
    model = build_model("mlp(sizes=[6, 8, 3])")
    inputs = torch.randn(4, 6, generator=generator(seed))
    targets = torch.randint(3, (4,), generator=generator(seed))
    if kind == "gradient":
        return GradientMessage(model, functional.cross_entropy, targets), inputs
    local = LocalUpdateMessage(model, functional.cross_entropy, targets, lr=0.1, steps=2)
    return local, inputs


@pytest.mark.parametrize("kind", ["gradient", "update"])
def test_two_private_batches_have_bitwise_the_same_moments(kind):
    first, second = (model_given(*a_message(seed, kind), generator()).moments for seed in (1, 2))
    for name, squares in first.squared_values.items():
        assert torch.equal(squares, second.squared_values[name])
        assert torch.equal(
            first.known_squared_sensitivities[name], second.known_squared_sensitivities[name]
        )


def test_values_of_the_private_batch_are_never_read():
    message, inputs = a_message(1)
    model_given(message, torch.full_like(inputs, torch.nan), generator())


def test_every_defense_can_plan_from_them():
    message, inputs = a_message(1)
    mechanism = OptimalNoise(0.1).made(model_given(message, inputs, generator()))
    power = torch.cat([std.reshape(-1).square() for std in mechanism.std.values()]).mean()
    assert float(power) == pytest.approx(0.01, rel=1e-5)


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 5, 3, padding=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.convolution(inputs)
        return made


@pytest.mark.parametrize(
    ("model", "shape", "loss_fn", "targets"),
    [
        (Segmenter(), (3, 2, 4, 4), functional.cross_entropy, torch.zeros(3, 4, 4).long()),
        (nn.Linear(4, 2), (3, 4), functional.mse_loss, torch.zeros(3, 2)),
        (nn.Linear(4, 1), (3, 4), functional.soft_margin_loss, torch.zeros(3, 1).long()),
    ],
)
def test_targets_of_every_kind_are_made_up(model, shape, loss_fn, targets):
    message = GradientMessage(model, loss_fn, targets)
    moments = model_given(message, torch.zeros(shape), generator()).moments
    assert all(bool((square > 0).all()) for square in moments.squared_values.values())


def test_targets_that_cannot_be_made_up_are_an_error():
    message = GradientMessage(nn.Linear(4, 2), lambda o, t: o.sum(), {"label": 1})
    with pytest.raises(TypeError, match="Found dict"):
        model_given(message, torch.zeros(3, 4), generator())


def test_outputs_without_classes_are_an_error():
    message = GradientMessage(nn.Linear(4, 2), lambda o, t: o.sum(), torch.zeros(3, 7).long())
    with pytest.raises(ValueError, match=r"Found shape \(2, 2\)"):
        model_given(message, torch.zeros(3, 4), generator())


def test_a_message_for_its_own_examples_only_is_an_error():
    with pytest.raises(TypeError, match="method `of"):
        model_given(lambda x: {"w": x.sum(0)}, torch.zeros(3, 4), generator())
