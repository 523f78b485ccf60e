"""Signs that a layer isolates single examples."""

from torch import Tensor

PARALLEL = 0.9
"""The cosine from which on two rows point nearly the same way."""


def parallel_rows(weight: Tensor) -> int:
    """The largest number of rows along one line, nearly; rows of zeros do not count.

    >>> import torch
    >>> parallel_rows(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-3.0, -6.0], [1.0, 0.0]]))
    3
    """
    rows = weight.flatten(1)
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) < 2 or rows.shape[1] < 2:
        return 0
    rows = rows / rows.norm(dim=1, keepdim=True)
    return int(((rows @ rows.T).abs() > PARALLEL).sum(1).max())


def effective_share(signal: Tensor) -> float:
    """(Σ_n ‖δ_n‖)² / (N Σ_n ‖δ_n‖²): the share of the examples that the signal comes from.

    >>> import torch
    >>> effective_share(torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
    0.5
    """
    sizes = signal.flatten(1).double().norm(dim=1)
    power = float(sizes.square().sum())
    return float(sizes.sum()) ** 2 / (len(sizes) * power) if power > 0 else 1.0
