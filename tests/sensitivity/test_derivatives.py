"""Forward mode, and what happens where PyTorch has none."""

import pytest
import torch
from torch.func import jvp

from gradveil.sensitivity import directional_derivatives
from gradveil.sensitivity._estimators import forward, row_derivatives, twice_backward
from tests.messages.compare import assert_same
from tests.zoo import Case, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

NAMES = ("mlp", "digits", "scalar", "unused", "batch_norm_train", "dropout_train", "contrastive")


def direction(case: Case, *leading: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*leading, *case.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_the_two_modes_agree(name: str) -> None:
    case = named(name)
    problem = case.message(), (case.inputs(),), (direction(case),)
    assert_same(twice_backward(*problem), forward(*problem))


@pytest.mark.parametrize("name", ["regression", "huber"])
def test_losses_without_forward_mode_are_served(name: str) -> None:
    """`jvp` fails for the gradient of the mean of `mse_loss` and of `huber_loss`.

    Once PyTorch mends that, this test says so, and the second mode may go.
    """
    case = named(name)
    message, inputs, v = case.message(), case.inputs(), direction(case)
    with pytest.raises(RuntimeError):
        jvp(message, (inputs,), (v,))
    step = 1e-6
    ahead, behind = message(inputs + step * v), message(inputs - step * v)
    expected = {n: ((ahead[n] - behind[n]) / (2 * step))[None] for n in ahead}
    found = directional_derivatives(message, inputs, v[None])
    assert_same(found, expected, tolerance=1e-7)


@pytest.mark.parametrize("name", [*NAMES, "regression", "gru"])
def test_many_rows_are_the_rows_one_by_one(name: str) -> None:
    case = named(name)
    message, inputs, rows = case.message(), case.inputs(), direction(case, 3)
    found = directional_derivatives(message, inputs, rows)
    for index, row in enumerate(rows):
        expected = directional_derivatives(message, inputs, row[None])
        assert_same({n: f[index : index + 1] for n, f in found.items()}, expected)


def test_an_error_that_no_mode_can_help_is_raised() -> None:
    def along(mode: object, row: torch.Tensor) -> dict[str, torch.Tensor]:
        raise RuntimeError("no derivative")

    with pytest.raises(RuntimeError, match="no derivative"):
        row_derivatives(along, torch.ones(2, 1))


def test_forward_mode_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("reverse mode applied twice")

    monkeypatch.setattr("gradveil.sensitivity._estimators.twice_backward", refuse)
    case = named("conv_net")
    directional_derivatives(case.message(), case.inputs(), direction(case, 3))
