"""Examples whose gradients nearly cancel over positions are within the clip all the same."""

import math

import pytest
import torch
from torch import nn

from gradveil import GradientMessage
from gradveil.messages import ClippedMessage
from gradveil.messages._clipped import _norms

CLIP = 0.1
LARGE = torch.tensor([1e8, 1.0, 1.0, 1.0, -1e8])
"""Signals of five positions: 3 together, which float32 loses in some orders of summation."""


def weighted(signal):
    return lambda outputs, _: (outputs * signal).flatten(1).sum(1).mean()


def layers():
    channels, features = LARGE.view(1, 1, 5), LARGE.view(1, 5, 1)
    plus_minus = torch.tensor([-1.0, 1.0, -1.0, 1.0]).expand(3, 5, 4).clone()
    return {
        "conv": (nn.Conv1d(1, 1, 1), channels, torch.ones(3, 1, 5)),
        "wide conv": (nn.Conv1d(1, 40, 1), channels, torch.ones(3, 1, 5)),
        "linear": (nn.Linear(4, 1), features, plus_minus),
        "layer norm": (nn.LayerNorm(4), features, plus_minus),
    }


def size_of(model, loss, inputs, grid):
    """‖Σ_b ĝ_b‖ over its largest possible value, for examples that are all the same."""
    message = GradientMessage(model, loss, None)
    values = ClippedMessage(message, CLIP, None, batch_size=1, grid=grid).values(inputs)
    square = sum(float(v.double().square().sum()) for v in values.values())
    return math.sqrt(square) / (CLIP * len(inputs))


@pytest.mark.parametrize("room", [1, 2**23])
@pytest.mark.parametrize("grid", [None, 1.0])
@pytest.mark.parametrize("name", layers())
def test_what_is_added_up_is_what_was_clipped(name, grid, room, monkeypatch):
    monkeypatch.setattr(_norms, "ROOM", room)
    model, signal, inputs = layers()[name]
    assert size_of(model, weighted(signal), inputs, grid) <= 1 + 1e-6


@pytest.mark.parametrize(("grid", "off"), [(None, 1e-3), (1.0, 1e-6)])
def test_long_products_of_positions_that_cancel(grid, off):
    """Sums of thousands of equal squares are off by many units in the last place of float32.

    With continuous noise the sum itself is in float32.
    """
    model, generator = nn.Linear(4096, 8, bias=False), torch.Generator().manual_seed(0)
    for _ in range(20):
        one, more = torch.rand(2, generator=generator).tolist()
        pair = torch.tensor([1 + one, -(1 + one) * (1 + 10 ** (1.2 * more - 3.2))])
        inputs = pair.view(1, 2, 1).expand(1, 2, 4096).clone()
        assert size_of(model, weighted(torch.ones(())), inputs, grid) <= 1 + off


@pytest.mark.parametrize("positions", [(), (2,)], ids=["one position", "several"])
def test_squares_of_float64_do_not_vanish(positions):
    """A signal whose square is 0 in float64, beside inputs that make up for it."""
    model = torch.nn.Linear(1, 4000, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    inputs = torch.full((1, *positions, 1), 1e154, dtype=torch.float64)
    message = GradientMessage(model, lambda o, _: (o * 1e-162).sum(), None)
    sent = ClippedMessage(message, 1e-10, batch_size=1).values(inputs)["weight"]
    assert float(sent.norm()) <= 1e-10
