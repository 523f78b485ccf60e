"""Denoising must find structure, keep what is certain, and not depend on units."""

import pytest
import torch

from gradveil.sensitivity._structured import smooth, smooth_sum


def noisy(truth: torch.Tensor, freedom: int, seed: int = 0) -> torch.Tensor:
    """truth × χ²_k / k."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(freedom, *truth.shape, generator=generator, dtype=truth.dtype)
    return truth * normal.square().mean(0)


def log_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.clamp_min(1e-12) / truth).log().square().mean())


def rows_and_columns() -> torch.Tensor:
    rows = torch.linspace(-2, 2, 40).double().exp()
    columns = torch.linspace(1, -1, 60).double().exp()
    return rows[:, None] * columns


def test_rows_and_columns_are_found():
    truth = rows_and_columns()
    raw = noisy(truth, 2)
    assert log_error(smooth(raw, 2), truth) < 0.05 * log_error(raw, truth)


def test_a_constant_stays_one():
    truth = torch.full((30, 50), 3.0).double()
    assert log_error(smooth(noisy(truth, 2), 2), truth) < 0.01


def test_certain_entries_are_kept():
    truth = torch.rand(20, 30, generator=torch.Generator().manual_seed(1)).double() + 0.1
    torch.testing.assert_close(smooth(truth, 1e9), truth, rtol=1e-4, atol=0)


def test_what_exceeds_the_noise_is_believed():
    truth = torch.ones(40, 40).double()
    truth[3, 5] = 1e4
    assert float(smooth(noisy(truth, 4), 4)[3, 5]) > 100


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_units_do_not_matter(scale: float):
    raw = noisy(rows_and_columns(), 3)
    torch.testing.assert_close(smooth(scale * raw, 3), scale * smooth(raw, 3))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 5), (5, 1), (2, 3, 4)])
def test_every_shape_works(shape: tuple[int, ...]):
    found = smooth(torch.ones(shape), 2)
    assert found.shape == shape
    torch.testing.assert_close(found, torch.ones(shape))


def test_zeros_stay_zeros():
    assert not smooth(torch.zeros(4, 4), 1).any()
    assert not smooth_sum(torch.zeros(4, 4), torch.zeros(())).any()


def test_many_equal_examples_count_as_many_degrees_of_freedom():
    truth = torch.rand(30, 30, generator=torch.Generator().manual_seed(2)).double() + 0.5
    generator = torch.Generator().manual_seed(3)
    squares = truth / 200 * torch.randn(200, 30, 30, generator=generator).double() ** 2
    found = smooth_sum(squares.sum(0), squares.square().sum())
    assert log_error(found, truth) < log_error(squares.sum(0), truth)
