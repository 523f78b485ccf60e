"""Defended training on real images: the loss falls."""

import pytest
import torch
from torch import nn

import gradveil
from gradveil import Defense, OptimalNoise
from gradveil.models import build_model
from gradveil.sensitivity import Sketch

DEFENSES = {
    "layer-wise": lambda: OptimalNoise(0.002, granularity="layer", estimator=Sketch(probes=1)),
    "private": lambda: OptimalNoise(0.002, source="private"),
}


@pytest.mark.parametrize("name", DEFENSES)
def test_the_loss_falls(name: str) -> None:
    data = gradveil.load_dataset("mnist", limit=128)
    model, defense = build_model("simple-conv-net", seed=0), DEFENSES[name]()
    before = loss_of(model, data.inputs, data.targets)
    train(model, defense, data.inputs, data.targets, steps=16)
    assert loss_of(model, data.inputs, data.targets) < 0.9 * before


def train(
    model: nn.Module, defense: Defense, inputs: torch.Tensor, targets: torch.Tensor, steps: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = list(zip(inputs.split(16), targets.split(16), strict=True))
    for step in range(steps):
        optimizer.zero_grad()
        defense.backward(
            model, nn.functional.cross_entropy, *batches[step % len(batches)], generator
        )
        optimizer.step()


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), targets))
