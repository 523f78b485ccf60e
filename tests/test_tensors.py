"""Messages in one row, sums over them, and linear solves."""

import pytest
import torch
from torch import Tensor

from gradveil._tensors import conjugate_gradients, relative_misfit, total

from .theory.oracles import normal

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


def system(size: int, decades: float) -> Tensor:
    """Symmetric, positive definite, eigenvalues over so many decades."""
    directions = torch.linalg.qr(normal(size, size))[0]
    eigenvalues = torch.logspace(0, decades, size, dtype=torch.float64)
    return (directions * eigenvalues) @ directions.T


def identity(rows: Tensor) -> Tensor:
    return rows


@pytest.mark.parametrize("decades", [0, 2, 4])
def test_it_solves(decades: float) -> None:
    matrix, right = system(12, decades), normal(5, 12, seed=1)
    found, converged = conjugate_gradients(lambda v: v @ matrix, right, identity, tolerance=1e-10)
    assert converged
    # a residual of 1e-10 is an error of at most 1e-10 times the condition number
    torch.testing.assert_close(found, torch.linalg.solve(matrix, right.T).T, rtol=1e-5, atol=1e-5)


def test_without_a_preconditioner_it_is_the_identity() -> None:
    matrix, right = system(12, 2), normal(5, 12, seed=1)
    plain = conjugate_gradients(lambda v: v @ matrix, right)[0]
    assert torch.equal(plain, conjugate_gradients(lambda v: v @ matrix, right, identity)[0])


def test_the_inverse_as_preconditioner_needs_one_step() -> None:
    matrix, right = system(12, 6), normal(5, 12, seed=1)
    inverse = matrix.inverse()
    found, converged = conjugate_gradients(
        lambda v: v @ matrix, right, lambda v: v @ inverse, max_steps=2
    )
    assert converged
    torch.testing.assert_close(found, right @ inverse, rtol=1e-6, atol=1e-9)


def test_rows_are_independent_and_zeros_stay() -> None:
    matrix, right = system(12, 2), normal(3, 12, seed=1)
    right[1] = 0.0
    right[2] *= 1e12
    found, converged = conjugate_gradients(lambda v: v @ matrix, right, identity)
    assert converged
    assert float(found[1].abs().max()) == 0.0
    for row in (0, 2):
        alone, _ = conjugate_gradients(lambda v: v @ matrix, right[row : row + 1], identity)
        torch.testing.assert_close(found[row], alone[0])


def test_an_unfinished_solve_is_from_below() -> None:
    """bᵀx grows to bᵀA⁻¹b: stopped early, the bound stays a lower bound."""
    matrix, right = system(20, 4), normal(4, 20, seed=1)
    exact = (right * torch.linalg.solve(matrix, right.T).T).sum(1)
    before = torch.zeros(4).double()
    for steps in range(1, 15):
        found, _ = conjugate_gradients(lambda v: v @ matrix, right, identity, max_steps=steps)
        now = (right * found).sum(1)
        assert bool((now >= before * (1 - 1e-12)).all())
        assert bool((now <= exact * (1 + 1e-9)).all())
        before = now


@pytest.mark.parametrize("steps", [3, 50, 500])
def test_a_singular_system_is_told(steps: int) -> None:
    """The solution grows until it overflows: that must not look like an end."""
    matrix = torch.diag(torch.tensor([1.0, 2.0, 0.0]).double())
    right = torch.ones(2, 3).double()
    right[1, 2] = 0.0
    _, converged = conjugate_gradients(lambda v: v @ matrix, right, identity, max_steps=steps)
    assert not converged
