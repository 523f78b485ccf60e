"""Messages in one row, and sums over them."""

import pytest
import torch

from gradveil._tensors import relative_misfit, total

VALUES = {"w": torch.tensor([[3.0, 1.0], [0.0, 2.0]]), "b": torch.tensor([4.0])}
TARGET = {"b": torch.tensor([2.0]), "w": torch.zeros(2, 2)}


def test_a_total_is_summed_in_double_precision():
    many = torch.full((10_000,), 0.1)
    assert total([many]).dtype == torch.float64
    assert float(total([many, many])) == pytest.approx(2 * 10_000 * float(many[0]), rel=1e-12)


def test_the_misfit_is_over_all_tensors_whatever_their_order():
    assert float(relative_misfit(VALUES, TARGET)) == pytest.approx((14 + 4) / 4)
    row = torch.tensor([3.0, 1.0, 0.0, 2.0, 4.0])
    assert float(relative_misfit(row, torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0]))) == 4.5


def test_a_misfit_to_nothing_is_large_and_finite_where_both_are_zero():
    assert float(relative_misfit(torch.zeros(3), torch.zeros(3))) == 0
    assert float(relative_misfit(torch.ones(3), torch.zeros(3))) > 1e30
