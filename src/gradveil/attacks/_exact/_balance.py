"""Rows of one length that fill all directions evenly."""

from typing import NamedTuple

import torch
from torch import Tensor

_ROUNDS = 30


class Balanced(NamedTuple):
    """Scaled rows in other coordinates: scales[i] · rows[i] · transform."""

    rows: Tensor
    transform: Tensor


def balance(rows: Tensor) -> Balanced:
    """Rows of length 1 with covariance I / rank: Tyler's fixed point.

    Neither the zeros of rows · q nor their number depend on it, but the way to them does: without
    it, a search sees the few directions and the few units in which gradients are large.

    Reference: Tyler, "A Distribution-Free M-Estimator of Multivariate Scatter", Annals of
    Statistics 1987.
    """
    identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    transform, now = identity, rows / rows.norm(dim=1, keepdim=True)
    for _ in range(_ROUNDS):
        covariance = now.T @ now / len(now) + 1e-12 * identity
        step = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
        transform = transform @ step
        transform = transform / transform.norm()
        now = rows @ transform
        now = now / now.norm(dim=1, keepdim=True)
    return Balanced(now, transform)
