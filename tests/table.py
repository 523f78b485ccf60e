"""A made-up table with columns that hang together, as those of a census do."""

import torch
from torch import Tensor, nn

from gradveil.data import TableLayout
from gradveil.models import build_model

LAYOUT = TableLayout.of(continuous=4, categories=[3, 5, 2, 7])


def table(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Encoded rows and a label that depends on them.

    One hidden number (wealth, say) moves all columns; categories have unequal frequencies.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 1, generator=generator)
    numbers = 0.6 * hidden + 0.8 * torch.randn(count, 4, generator=generator)
    columns = []
    for group in LAYOUT.categorical:
        size = len(group)
        ladder = torch.linspace(-1, 1, size)
        scores = hidden * ladder - 0.3 * torch.arange(size)
        noise = -(-torch.rand(count, size, generator=generator).log()).log()
        columns.append((scores + noise).argmax(1))
    labels = (hidden[:, 0] + 0.5 * torch.randn(count, generator=generator) > 0).long()
    return LAYOUT.encode(numbers, torch.stack(columns, 1)), labels


def perceptron(width: int = LAYOUT.width, hidden: int = 50) -> nn.Module:
    return build_model("mlp", sizes=[width, hidden, hidden, 2], activation="relu")
