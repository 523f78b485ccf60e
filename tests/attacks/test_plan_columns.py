import torch

from gradveil.attacks._plan_reader import read_columns, read_pixels

from .planned import correlation, generator


def matrix(columns: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Noise of variance √(1/u² + c²), as optimal noise has it."""
    variances = (columns.pow(-2) + rows[:, None].square()).sqrt()
    return variances.sqrt() * torch.randn(variances.shape, generator=generator(1))


COLUMNS = torch.linspace(-1, 1, 300).exp()


def test_columns_are_found_up_to_a_factor():
    found = read_columns(1e3 * matrix(COLUMNS, torch.linspace(0, 0.5, 200)))
    ratio = found.mean.log() - COLUMNS.log()
    assert correlation(found.mean.log(), COLUMNS.log()) > 0.97
    assert ratio.std() < 0.15


def test_rows_that_hide_their_columns_count_less():
    hidden = torch.cat([torch.full((60,), 30.0), torch.full((60,), 0.1)])
    found = read_columns(matrix(COLUMNS, hidden))
    assert found.rows[:60].min() > 10 * found.rows[60:].max()
    assert correlation(found.mean.log(), COLUMNS.log()) > 0.9


def test_the_spread_is_that_of_the_error():
    found = read_columns(matrix(COLUMNS, torch.zeros(64)))
    scale = (found.mean * COLUMNS).sum() / COLUMNS.square().sum()
    errors = (found.mean - scale * COLUMNS) / found.spread
    assert 0.6 < errors.square().mean().sqrt() < 1.6


def test_isotropic_noise_shows_nothing():
    found = read_columns(torch.randn(64, 300, generator=generator()))
    assert found.mean.log().std() < 0.1
    shown = read_columns(matrix(COLUMNS, torch.zeros(64)))
    assert shown.mean.log().std() > 0.4


def test_dead_rows_without_noise_are_left_out():
    sent = matrix(COLUMNS, torch.zeros(64))
    dead = torch.cat([torch.zeros(100, 300), sent])
    torch.testing.assert_close(read_columns(dead).mean, read_columns(sent).mean)


def test_pixels_are_read_with_their_signs_and_their_scale():
    values = torch.tensor([-0.4, 1.0, 2.5]).repeat_interleave(torch.tensor([400, 50, 150]))
    sent = 70 * matrix(values.abs(), torch.full((100,), 0.1))
    low, high = torch.full((600,), -0.4), torch.full((600,), 2.5)
    found = read_pixels(read_columns(sent), low, high)
    assert (found - values).square().mean() < 0.05
