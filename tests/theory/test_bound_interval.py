"""The interval of a bound over batches against brute force."""

import pytest
import torch
from torch import Tensor

from gradveil import GaussianPrior
from gradveil.mechanisms import Mechanism
from gradveil.theory import Bound, BoundCase, mean_bound

from .oracles import normal, seeded

PRIOR = GaussianPrior(torch.zeros(3).double(), torch.diag(torch.tensor([2.0, 1.0, 0.5]).double()))


def squares(x: Tensor) -> dict[str, Tensor]:
    """Its Jacobian is diag(x + 1/2): another information for each batch."""
    return {"g": (x.square() / 2 + x / 2).flatten()}


def cases(count: int, spread: float = 0.2) -> list[BoundCase]:
    mechanism = Mechanism(std=0.5)
    inputs = (1 + spread * normal(1, 3, seed=20 + k) for k in range(count))
    return [BoundCase(squares, x, mechanism) for x in inputs]


def at(
    weights: Tensor, batches: list[BoundCase], method: str, prior: GaussianPrior | None
) -> float:
    """The bound with batches weighted like this, by hand."""
    squared = torch.stack([((c.inputs + 0.5) / 0.5).square().flatten() for c in batches])
    information = (weights[:, None] * squared).sum(0) / weights.sum()
    known = torch.zeros(3).double() if prior is None else PRIOR.precision.diagonal()
    if method == "full":
        return float((information + known).reciprocal().mean())
    return 3 / float((information + known).sum())


def interval(bound: Bound) -> tuple[float, float]:
    assert bound.interval is not None
    return bound.interval


@pytest.mark.parametrize("solver", ["dense", "iterative"])
@pytest.mark.parametrize("method", ["full", "trace"])
@pytest.mark.parametrize("prior", [None, PRIOR])
def test_it_is_that_of_resampled_batches(
    method: str, solver: str, prior: GaussianPrior | None
) -> None:
    batches, draws = cases(12), seeded(1)
    bound = mean_bound(
        batches, prior, method, solver=solver, probes=64, generator=seeded(2), public_plan=True
    )
    resampled = []
    for _ in range(2000):
        chosen = torch.randint(12, (12,), generator=draws)
        weights = torch.bincount(chosen, minlength=12).double()
        resampled.append(at(weights, batches, method, prior))
    ends = torch.quantile(torch.tensor(resampled), torch.tensor([0.025, 0.975])).tolist()
    width = (ends[1] - ends[0]) * (12 / 11) ** 0.5
    low, high = interval(bound)
    assert low < bound.per_entry < high
    assert high - low == pytest.approx(width, rel=0.15)
    assert low == pytest.approx(ends[0], abs=0.15 * width)


def test_equal_batches_have_no_width_and_one_has_no_interval() -> None:
    same = cases(1) * 5
    low, high = interval(mean_bound(same, PRIOR, generator=seeded()))
    assert low == pytest.approx(high, rel=1e-9)
    assert mean_bound(cases(1), PRIOR, generator=seeded()).interval is None


def test_more_batches_make_it_narrower() -> None:
    few, many = (
        interval(mean_bound(cases(n, 0.4), PRIOR, "trace", generator=seeded())) for n in (6, 60)
    )
    assert many[1] - many[0] < 0.5 * (few[1] - few[0])
