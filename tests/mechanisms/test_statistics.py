"""The checks themselves must be able to fail."""

import pytest
import torch

from tests.mechanisms.statistics import assert_mean, assert_noise_scale, assert_normal

STD = {"w": torch.tensor([0.5, 2.0, 0.0]), "s": torch.tensor(3.0)}


def noise(factor: float = 1.0, count: int = 200) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: factor * std * torch.randn(count, *std.shape, generator=generator)
        for name, std in STD.items()
    }


def test_right_noise_passes() -> None:
    assert_noise_scale(noise(), STD)
    assert_normal(noise(), STD)


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_wrong_scale_is_rejected(factor: float) -> None:
    with pytest.raises(AssertionError, match="times the planned"):
        assert_noise_scale(noise(factor), STD)


def test_noise_on_a_silent_entry_is_rejected() -> None:
    found = noise()
    found["w"][7, 2] = 1e-30
    with pytest.raises(AssertionError, match="silent entry of w"):
        assert_noise_scale(found, STD)


def test_levels_of_other_entries_are_rejected() -> None:
    found = noise()
    found["w"] = found["w"][:, [1, 0, 2]]
    with pytest.raises(AssertionError, match="times the planned"):
        assert_noise_scale(found, STD)


def test_too_few_draws_are_noticed() -> None:
    with pytest.raises(AssertionError, match="do not tell"):
        assert_noise_scale(noise(count=10), STD)


def test_uniform_noise_is_not_normal() -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = {
        n: (torch.rand(1000, *s.shape, generator=generator) - 0.5) * 12**0.5 * s
        for n, s in STD.items()
    }
    assert_noise_scale(uniform, STD)
    with pytest.raises(AssertionError):
        assert_normal(uniform, STD)


def test_wrong_mean_is_rejected() -> None:
    samples = noise(count=1000)["s"]
    assert_mean(samples, 0.0)
    with pytest.raises(AssertionError, match="instead of"):
        assert_mean(samples, 1.0)
