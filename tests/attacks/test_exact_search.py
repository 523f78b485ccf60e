"""The parts of exact inversion against what is known of the truth."""

import torch

from gradveil import GradientNoise
from gradveil.attacks._exact_inversion import Hunt, assemble, balance, complete, problem_of
from tests.attacks.small import observed, seeded

from .test_exact_inversion import drawn, perceptron


def setting(count=4, **options):
    batch = drawn(count)
    problem = problem_of(observed(perceptron(64, 60, 10), batch, **options), seeded())
    assert problem is not None
    inputs, labels = batch
    deltas = problem.output_gradients(inputs, labels)
    return problem, inputs.double().flatten(1), deltas


def test_the_factors_make_the_gradient():
    problem, inputs, deltas = setting()
    factors = problem.factors
    extended = torch.cat([inputs, torch.ones(4, 1)], dim=1)
    made = factors.rows @ factors.basis
    torch.testing.assert_close(made, deltas.T @ extended, rtol=1e-4, atol=1e-6)
    identity = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(factors.basis @ factors.basis.T, identity)


def test_the_noise_is_read_from_the_singular_values():
    problem, _, _ = setting(defense=GradientNoise(1e-3))
    assert 0.9e-3 < problem.factors.noise < 1.1e-3
    assert problem.factors.rank == 4


def test_repeated_images_lower_the_rank():
    images, labels = drawn(3)
    batch = images[[0, 1, 1, 2]], labels[[0, 1, 1, 2]]
    problem = problem_of(observed(perceptron(64, 60, 10), batch), seeded())
    assert problem is not None
    assert problem.factors.rank == 3


def test_the_gradients_at_the_outputs_add_up_to_the_biass():
    problem, _, deltas = setting()
    sent = problem.observation.sent[problem.call.bias].double()[problem.factors.units]
    torch.testing.assert_close(deltas.sum(0), sent, rtol=1e-4, atol=1e-7)


def test_balanced_rows_have_one_length_and_fill_all_directions():
    rows = torch.randn(50, 4, generator=seeded(), dtype=torch.float64)
    rows = rows * torch.tensor([1.0, 1e-2, 10.0, 1.0]) * torch.linspace(0.1, 9, 50)[:, None]
    balanced, transform = balance(rows)
    torch.testing.assert_close(balanced.norm(dim=1), torch.ones(50, dtype=torch.float64))
    covariance = balanced.T @ balanced / 50
    torch.testing.assert_close(covariance, torch.eye(4).double() / 4, rtol=1e-3, atol=1e-4)
    own = rows @ transform
    torch.testing.assert_close(own / own.norm(dim=1, keepdim=True), balanced)


def test_true_zeros_give_the_true_batch():
    problem, inputs, deltas = setting()
    batch = assemble(problem.factors, deltas == 0)
    assert batch is not None
    torch.testing.assert_close(batch.inputs, inputs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(batch.deltas, deltas, rtol=1e-3, atol=1e-6)


def test_one_and_two_missing_directions_follow_from_the_others():
    problem, _, deltas = setting()
    factors = problem.factors
    true = torch.linalg.lstsq(factors.rows, deltas.T).solution.T
    for missing in (1, 2):
        taken = true[missing:]
        open_ = torch.linalg.svd(taken, full_matrices=True)[2][-missing:].T
        hunt = Hunt(factors)
        hunt.add_completions(*complete(factors, open_))
        found = hunt.in_rows
        cosines = (found @ (true[:missing] / true[:missing].norm(dim=1, keepdim=True)).T).abs()
        assert cosines.amax(dim=0).min() > 1 - 1e-8
