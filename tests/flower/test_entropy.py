"""Noise that nobody seeded cannot be found by trying seeds."""

import torch

from gradveil._random import filled_generator


def words(generator: torch.Generator) -> torch.Tensor:
    return generator.get_state()[24 : 24 + 8 * 624].view(torch.int64)


def test_torch_uses_32_bits_of_a_seed():
    """Why `Generator.seed()` is not enough; when this fails, `filled_generator` can go."""
    first, second = (torch.Generator().manual_seed(seed) for seed in (5, 5 + 2**32))
    assert torch.equal(torch.randn(4, generator=first), torch.randn(4, generator=second))


def test_words_are_where_they_are_expected():
    """The state after seed 1 starts as Matsumoto and Nishimura's initialisation does."""
    seeded = words(torch.Generator().manual_seed(1))
    expected = [1]
    for place in range(1, 624):
        last = expected[-1]
        expected.append((1812433253 * (last ^ (last >> 30)) + place) & 0xFFFFFFFF)
    assert seeded.tolist() == expected


def test_fresh_state_is_no_seeds_state():
    """Every word differs from one generator to the next, and no recurrence of a seed holds."""
    first, second = words(filled_generator()), words(filled_generator())
    assert (first != second).float().mean() > 0.99
    assert int(first.max()) < 2**32
    following = (1812433253 * (first[:-1] ^ (first[:-1] >> 30)) + torch.arange(1, 624)) % 2**32
    assert (following == first[1:]).float().mean() < 0.01


def test_fresh_noise_is_standard_normal():
    drawn = torch.randn(200_000, generator=filled_generator())
    assert abs(float(drawn.mean())) < 5 / 200_000**0.5
    assert abs(float(drawn.var()) - 1) < 5 * (2 / 200_000) ** 0.5
