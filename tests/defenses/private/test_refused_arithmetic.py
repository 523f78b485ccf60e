"""Cases in which clipping would not hold, found by trying to break it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, PrivateNoise
from gradveil.shapes import Shape


def test_an_embedding_that_divides_by_counts_of_the_batch_is_refused():
    """Its sum moved by 1.96 C when one example was added."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(5, 4, scale_grad_by_freq=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rows(x.long()).sum(1))

    message = GradientMessage(Bag(), cross_entropy, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="counts of the whole batch"):
        PrivateNoise(1.0, 1.0).respond(message, torch.ones(2, 6))


def test_factors_whose_squares_vanish_are_refused():
    """Their product was 1, and an example of 3.3 C was not clipped."""
    factors = (torch.full((3, 1), 1e-37), torch.full((1, 6), 1e37))
    with pytest.raises(ValueError, match=r"should be in \[1e-08, 1e\+08\]"):
        PrivateNoise(1.0, 1.0, metric=Shape({"weight": factors}))


def test_many_factors_whose_product_vanishes_are_refused():
    """Each is in range; three gave norms of 8.6 C."""
    factor = torch.tensor([9.9e7, 1.1e-8])
    PrivateNoise(1.0, 1.0, metric=Shape({"weight": (factor, factor)}))
    with pytest.raises(ValueError, match=r"and their product in \[1e-16, 1e\+16\]"):
        PrivateNoise(1.0, 1.0, metric=Shape({"weight": (factor,) * 3}))


def test_a_clip_whose_square_vanishes_is_refused():
    with pytest.raises(ValueError, match="`clip` should be at least"):
        PrivateNoise(1.0, 1e-24)
