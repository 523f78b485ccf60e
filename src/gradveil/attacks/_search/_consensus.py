"""The mean of several candidates for one batch."""

import torch
from torch import Tensor

from gradveil.scoring import match


def consensus(seeds: Tensor, labels: Tensor) -> Tensor:
    """For each seed the mean over seeds, in that seed's own order.

    Images of one label come in any order, so each seed's are first matched to the first seed's.
    """
    orders = [order_like(seed, seeds[0], labels) for seed in seeds]
    mean = torch.stack([seed[order] for seed, order in zip(seeds, orders, strict=True)]).mean(0)
    return torch.stack([mean[order.argsort()] for order in orders])


def order_like(seed: Tensor, reference: Tensor, labels: Tensor) -> Tensor:
    """The images of a seed in the reference's order, exchanged only within a label (or target)."""
    order = torch.arange(len(labels), device=labels.device)
    rows = labels.reshape(len(labels), -1)
    for row in rows.unique(dim=0):
        places = torch.nonzero((rows == row).all(1)).flatten()
        if len(places) > 1:
            order[places] = places[match(seed[places], reference[places])]
    return order
