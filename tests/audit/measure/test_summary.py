"""Intervals of an audit: what they say of a few images."""

import torch

from gradveil.audit._result import RunResult
from gradveil.audit.measure._attacks import attack_result
from gradveil.scoring import bootstrap_interval


def run(values: list[float], batch: int = 0, seed: int = 0) -> RunResult:
    errors = tuple(values)
    return RunResult(batch, seed, "finished", 1.0, errors, errors, errors, None, None)


def test_four_images_of_one_batch_are_covered_nineteen_times_of_twenty():
    """Plain percentiles hold the mean 79 % of the time."""
    draws, hits, trials = torch.Generator().manual_seed(0), 0, 300
    for _ in range(trials):
        errors = torch.randn(4, generator=draws, dtype=torch.float64)
        found = attack_result("a", False, [run(errors.tolist())]).mse
        hits += found.low <= 0 <= found.high
    assert hits / trials > 0.91


def test_seeds_of_one_batch_are_averaged_and_batches_are_groups():
    images = attack_result("a", False, [run([1.0, 3.0]), run([3.0, 5.0], seed=1)]).mse
    assert images == bootstrap_interval(torch.tensor([2.0, 4.0]))
    batches = attack_result("a", False, [run([1.0, 3.0]), run([3.0, 5.0], batch=1)]).mse
    assert batches == bootstrap_interval([torch.tensor([1.0, 3.0]), torch.tensor([3.0, 5.0])])
