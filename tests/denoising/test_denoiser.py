"""The denoiser: deterministic, stored without pickle, and as good as the best linear one."""

import pytest
import torch

from gradveil.denoising import Denoiser


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(seed))


@pytest.mark.parametrize("shape", [(3,), (1, 8, 8), (3, 8, 12), (1, 7, 7)])
def test_equal_seeds_give_equal_denoisers_and_leave_the_global_generator_alone(shape):
    samples, labels = normal(12, *shape), torch.arange(12) % 3
    state = torch.get_rng_state()
    first, second, other = (
        Denoiser.fit(samples, labels, steps=2, generator=stream(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    a, b, c = (d(samples, 0.3, labels) for d in (first, second, other))
    assert a.shape == samples.shape
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_it_learns_the_best_guess_of_gaussian_vectors():
    root = torch.diag(torch.tensor([2.0, 1.0, 0.2]))
    samples, held_out = normal(4000, 3) @ root, normal(4000, 3, seed=1) @ root
    made = Denoiser.fit(samples, steps=400, generator=stream())
    for level in (0.3, 1.0):
        noisy = held_out + level * normal(4000, 3, seed=2)
        error = float((made(noisy, level) - held_out).square().sum(1).mean())
        variances = root.diagonal() ** 2
        best = float((variances * level**2 / (variances + level**2)).sum())
        assert 0.93 * best < error < 1.1 * best


def test_classes_help_where_they_are_told():
    labels = torch.arange(2000) % 2
    samples = 2.0 * (2 * labels - 1)[:, None] + 0.2 * normal(2000, 2)
    made = Denoiser.fit(samples, labels, steps=300, generator=stream())
    noisy = samples + 3.0 * normal(2000, 2, seed=3)
    told, untold = (
        float((made(noisy, 3.0, known) - samples).square().mean()) for known in (labels, None)
    )
    assert told < 0.2 < 0.5 < untold


def test_levels_may_differ_from_example_to_example():
    samples = normal(6, 1, 8, 8)
    made = Denoiser.fit(samples, steps=1, generator=stream())
    levels = torch.linspace(0.1, 1, 6)
    together = made(samples, levels)
    for example, level, guess in zip(samples, levels, together, strict=True):
        assert torch.allclose(made(example[None], float(level))[0], guess, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"samples": torch.zeros(1, 3)}, "at least 2 examples"),
        ({"labels": torch.zeros(3, dtype=torch.long)}, "one class for each"),
        ({"labels": torch.zeros(4)}, "integers"),
        ({"steps": 0}, "steps"),
    ],
)
def test_wrong_arguments_say_so(options, error):
    with pytest.raises((ValueError, TypeError), match=error):
        Denoiser.fit(**{"samples": normal(4, 3), **options})
