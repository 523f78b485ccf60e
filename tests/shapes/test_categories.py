"""A table with categories: made-up numbers are none, and the error says what to do."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from gradveil import GradientMessage, OptimalNoise, OptimalPruning, Public
from gradveil.audit import Settings, Subject, run
from gradveil.defenses import Defense
from gradveil.federated import Client
from gradveil.messages import ModelError

WAY_OUT = r"should accept made-up examples.*index out of range.*source=Public\(\(inputs"


class Table(nn.Module):
    """Three numbers, and a category in the last column."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(6, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        category = self.embed(inputs[:, 3].long())
        made: Tensor = self.head(torch.cat([inputs[:, :3], category], 1))
        return made


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, 3, generator=generator)
    category = torch.randint(4, (count, 1), generator=generator)
    return torch.cat([numbers, category], 1), torch.randint(2, (count,), generator=generator)


@pytest.mark.parametrize("defense", [OptimalNoise(0.1), OptimalPruning(0.5)], ids=str)
@pytest.mark.parametrize("count", [1, 4, 32])
def test_the_error_names_the_way_out(defense: Defense, count: int) -> None:
    inputs, targets = rows(count)
    model = Table()
    with pytest.raises(ModelError, match=WAY_OUT):
        defense.backward(model, cross_entropy, inputs, targets)
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(ModelError, match=WAY_OUT):
        defense(GradientMessage(model, cross_entropy, targets), inputs)


def test_so_for_numbers_as_targets() -> None:
    inputs, _ = rows(8)
    with pytest.raises(ModelError, match=WAY_OUT):
        OptimalNoise(0.1).backward(Table(1), mse_loss, inputs, torch.zeros(8, 1))


def test_so_for_a_client() -> None:
    client = Client(0, *rows(16), OptimalNoise(0.1), batch_size=8, seed=0)
    with pytest.raises(ModelError, match=WAY_OUT):
        client.reply(Table(), cross_entropy)


@pytest.mark.parametrize("plan", ["public", "private"])
def test_the_ways_out_work(plan: str) -> None:
    inputs, targets = rows(8)
    defense: Defense = OptimalNoise(0.1, source="private")
    if plan == "public":
        defense = OptimalNoise(0.1, source=Public(rows(32, seed=1)))
    client = Client(0, inputs, targets, defense, batch_size=8, seed=0)
    assert client.reply(Table(), cross_entropy).examples == 8


def test_an_audit_says_so_and_works_with_public_rows() -> None:
    settings = Settings(["optimal-noise(scale=0.1)"], attacks=[], training_seeds=0)
    told = run(Subject(Table(), cross_entropy, rows(16)), settings=settings).notes
    assert any(re.search(WAY_OUT, note) for note in told)
    found = run(
        Subject(Table(), cross_entropy, rows(16), public=rows(64, seed=2)), settings=settings
    )
    assert "optimal noise" in [defense.name for defense in found.defenses]
