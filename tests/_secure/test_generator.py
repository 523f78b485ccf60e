"""The secure generator: its numbers have the right distribution, and cannot be drawn again."""

import copy
import pickle
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from gradveil import GradientNoise
from gradveil._random import bernoulli, generator_or_fresh, normal_like
from gradveil._secure import SecureGenerator, normals, uniforms
from gradveil.mechanisms import Mechanism

FLOATS = (torch.float32, torch.float64)


def draw(count: int, dtype: torch.dtype = torch.float32) -> np.ndarray:
    return SecureGenerator().normal(torch.Size([count]), dtype).double().numpy()


def is_standard(drawn: np.ndarray) -> bool:
    """Moments and the Kolmogorov-Smirnov distance, each at a level of about 1e-6."""
    count = len(drawn)
    mean, second = drawn.mean() * np.sqrt(count), (np.mean(drawn**2) - 1) * np.sqrt(count / 2)
    fourth = (np.mean(drawn**4) - 3) * np.sqrt(count / 96)
    near = stats.kstest(drawn, "norm").pvalue > 1e-6
    return bool(near and max(abs(mean), abs(second), abs(fourth)) < 5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normals_are_standard_and_others_are_found_out(dtype):
    drawn = draw(200_001, dtype)
    assert is_standard(drawn)
    for wrong in (1.02 * drawn, drawn + 0.03, 2 / 3 * drawn, 3 / 2 * drawn):
        assert not is_standard(wrong)


def test_pairs_are_independent():
    """Sine and cosine of one radius, neighbours, and the draws of two calls."""
    generator = SecureGenerator()
    first = generator.normal(torch.Size([1 << 16]), torch.float64).numpy()
    second = generator.normal(torch.Size([1 << 16]), torch.float64).numpy()
    half = len(first) // 2
    pairs = [(first[:half], first[half:]), (first[1:], first[:-1]), (first, second)]
    for left, right in pairs:
        for power in (1, 2):
            correlation = np.corrcoef(left**power, right**power)[0, 1]
            assert abs(correlation) < 5 / np.sqrt(len(left))


def test_box_muller_from_known_words():
    """u = 2⁻⁵³ (the farthest) and u = 1 (the nearest), at angle 0."""
    words = {1: np.array([0], dtype=np.uint64)}
    far = normals(lambda count: words[count], 2, torch.float64)
    assert far.tolist() == pytest.approx([np.sqrt(2 * 53 * np.log(2)), 0.0])
    ends = iter([np.array([2**64 - 1], dtype=np.uint64), np.array([0], dtype=np.uint64)])
    assert normals(lambda _: next(ends), 2, torch.float32).tolist() == [0.0, 0.0]


def test_uniforms_are_below_one():
    words = np.array([0, 2**11, 2**64 - 1], dtype=np.uint64)
    assert uniforms(lambda _: words, 3).tolist() == [0.0, 2.0**-53, 1 - 2.0**-53]
    drawn = SecureGenerator().uniform(torch.Size([300, 300]))
    assert stats.kstest(drawn.flatten().numpy(), "uniform").pvalue > 1e-6


@pytest.mark.slow
def test_tails_to_five_standard_deviations():
    """Numbers beyond 3, 4, 4.5 and 5 are as many as they should be, of 4e7."""
    count, pieces = 4 * 10**7, 8
    beyond = np.zeros(8)
    levels = [3, 4, 4.5, 5]
    for _ in range(pieces):
        drawn = draw(count // pieces)
        beyond += [np.sum(sign * drawn > level) for level in levels for sign in (1, -1)]
    for place, found in enumerate(beyond):
        expected = count * stats.norm.sf(levels[place // 2])
        assert stats.poisson.cdf(found, expected) > 1e-7
        assert stats.poisson.sf(found - 1, expected) > 1e-7


def test_it_takes_the_place_of_a_generator():
    generator = SecureGenerator()
    assert generator_or_fresh(generator) is generator
    reference = torch.zeros(40_000, dtype=torch.float64)
    assert is_standard(normal_like(reference, generator).numpy())
    kept = bernoulli(torch.full((40_000,), 0.3), generator)
    assert kept.dtype == torch.float32
    assert abs(float(kept.mean()) - 0.3) < 5 * np.sqrt(0.21 / 40_000)


def test_mechanisms_draw_their_noise_from_the_secure_stream(monkeypatch):
    asked = []
    secure = SecureGenerator.normal
    monkeypatch.setattr(
        SecureGenerator, "normal", lambda self, *size: asked.append(size) or secure(self, *size)
    )
    values = {"w": torch.zeros(200, 100), "b": torch.zeros(3)}
    sent = Mechanism(std=2.0).apply(values, SecureGenerator())
    assert sum(size[0].numel() for size in asked) == 200 * 100 + 3
    assert is_standard(sent["w"].flatten().double().numpy() / 2)


def test_a_defense_takes_it():
    model = torch.nn.Linear(3, 2)
    inputs, targets = torch.ones(4, 3), torch.tensor([0, 1, 0, 1])
    loss = torch.nn.functional.cross_entropy
    sent = GradientNoise(scale=0.1).backward(model, loss, inputs, targets, SecureGenerator())
    assert set(sent) == {"weight", "bias"}


@pytest.mark.parametrize(
    "again",
    [
        lambda generator: generator.manual_seed(0),
        lambda generator: generator.seed(),
        lambda generator: generator.set_state(torch.Generator().get_state()),
        lambda generator: generator.clone_state(),
        pickle.dumps,
        copy.copy,
    ],
)
def test_nothing_can_be_drawn_again(again):
    with pytest.raises(TypeError, match="A SecureGenerator should be made anew"):
        again(SecureGenerator())


def test_a_deep_copy_is_another_generator():
    generator = SecureGenerator()
    copied = copy.deepcopy({"generator": generator})["generator"]
    assert isinstance(copied, SecureGenerator)
    assert copied.words(4).tolist() != generator.words(4).tolist()
    assert not torch.equal(copied.get_state(), generator.get_state())


def test_without_cryptography_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        SecureGenerator()
    assert str(raised.value) == (
        "Found no module `cryptography`. Install what secure noise needs:"
        ' pip install "gradveil[privacy]"'
    )
