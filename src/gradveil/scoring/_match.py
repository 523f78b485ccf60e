"""Pairs of images by optimal assignment."""

import torch
from torch import Tensor

from gradveil._extras import require


def match(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """For each image of the truth the place of its partner: least total squared error.

    >>> match(torch.tensor([[0.0], [5.0]]), torch.tensor([[4.0], [1.0]])).tolist()
    [1, 0]
    """
    a, b = (x.detach().to("cpu", torch.float64).flatten(1) for x in (truth, reconstruction))
    errors = a.square().sum(1)[:, None] + b.square().sum(1)[None, :] - 2 * a @ b.T
    return best_pairs(errors).to(truth.device)


def best_pairs(costs: Tensor) -> Tensor:
    """For each row the column of its partner: the least total cost.

    >>> best_pairs(torch.tensor([[1.0, 0.0], [0.0, 5.0]])).tolist()
    [1, 0]
    """
    require("matching images", "gradveil[audit]", "scipy")
    from scipy.optimize import linear_sum_assignment  # only attackers' scores need it

    return torch.as_tensor(linear_sum_assignment(costs.cpu().numpy())[1])
