"""An image from the noise levels of a layer that reads it."""

import torch
from torch import Tensor

from ._columns import Columns

GRID, FACTORS, SWEEPS = 65, 121, 40
"""Values of a pixel, factors that are tried, and rounds in which the values' shares are fitted."""

AT_EACH_END = 0.25
"""The share of pixels that is expected at either end of the range: black and white."""

KEPT = 0.1
"""The part of those expectations that is kept when the shares are fitted."""


def read_pixels(columns: Columns, low: Tensor, high: Tensor) -> Tensor:
    """The likeliest value of every pixel, from u_j = |x_j| up to one factor.

    Noise levels do not tell the sign, and a factor is open. Both are settled by what is known of
    images: their range, and that many of their pixels lie at its ends. The factor is the likeliest
    one; then the shares of all values are fitted to the image itself (expectation maximisation).

    Args:
        columns: Of the matrix that reads the pixels.
        low: The least value of each pixel, one row.
        high: The largest one.
    """
    places = torch.linspace(0, 1, GRID).to(low)
    shares = torch.full_like(places, (1 - 2 * AT_EACH_END) / (GRID - 2))
    shares[0] = shares[-1] = AT_EACH_END
    values = low[:, None] + (high - low)[:, None] * places
    logs = torch.linspace(-9, 9, 181).to(values)
    table = columns.costs(logs.exp())
    tried = (_interpolated(table, logs, values, f) for f in _factors(columns, values))
    costs = max(tried, key=lambda costs: float(_evidence(costs, shares)))
    expected = shares
    for _ in range(SWEEPS):
        posterior = (shares.log() - costs).softmax(1)
        shares = (1 - KEPT) * posterior.mean(0) + KEPT * expected
    return values.gather(1, posterior.argmax(1, keepdim=True))[:, 0]


def _factors(columns: Columns, values: Tensor) -> Tensor:
    """Of u over |x|: such that the largest pixel is a typical column, up to a hundred times it."""
    largest = columns.mean.median() / values.abs().max()
    return largest * torch.logspace(-0.5, 2, FACTORS).to(values)


def _interpolated(table: Tensor, logs: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    """-log p(y_j | x_j = value) for each pixel and each of its values, u = factor · |x|."""
    least = 1e-3 * values.abs().max()
    wanted = (values.abs().clamp(min=least) * factor).log()
    place = ((wanted - logs[0]) / (logs[1] - logs[0])).clamp(0, len(logs) - 1.001)
    below = place.floor().long()
    share = place - below
    return table.gather(1, below) * (1 - share) + table.gather(1, below + 1) * share


def _evidence(costs: Tensor, shares: Tensor) -> Tensor:
    return (shares.log() - costs).logsumexp(1).sum()
