"""Sampling that makes a release more private."""

import torch
from torch import Tensor

from gradveil._checks import check_not_negative_count
from gradveil._random import bernoulli

from ._checks import check_probability


def check_sample_rate(rate: float, name: str = "sample_rate") -> None:
    """Require a probability above 0.

    >>> check_sample_rate(0.01)
    """
    check_probability(rate, name)


def poisson_sample(count: int, rate: float, generator: torch.Generator) -> Tensor:
    """The places of those of `count` examples that are in, each with probability `rate`.

    Independently of each other and of other calls; there may be none, or all. This is the sampling
    that accountants mean. It helps only as long as nobody learns who was in: give a
    `SecureGenerator`, and a denominator that does not depend on the number drawn.

    >>> poisson_sample(4, 1.0, torch.Generator().manual_seed(0))
    tensor([0, 1, 2, 3])
    """
    check_not_negative_count(count, "count")
    check_probability(rate, "rate")
    chances = torch.full((count,), float(rate), dtype=torch.float64)
    return bernoulli(chances, generator).nonzero().flatten()
