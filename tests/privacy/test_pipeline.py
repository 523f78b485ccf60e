"""Canaries in the real pipeline: `PrivateNoise` spends what the account says, mistakes show."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, PrivateNoise
from gradveil.messages import values_of
from gradveil.privacy import SecureGenerator, epsilon_after
from tests.privacy.lower_bound import epsilon_lower_bound

DELTA, MULTIPLIER = 1e-5, 0.5
INPUTS = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
INPUTS[8] *= 20  # the canary: its gradient is far above the clip
TARGETS = torch.arange(9) % 3
DEFENSE = PrivateNoise(noise_multiplier=MULTIPLIER, clip=0.1, batch_size=8)
CONTINUOUS = replace(DEFENSE, grid=False)


class LittleNoise(PrivateNoise):
    """Two thirds of the noise."""

    def mechanism(self, shape, moments):
        plan = super().mechanism(shape, moments)
        return replace(plan, std={name: level * 2 / 3 for name, level in plan.std.items()})


class NoClip(PrivateNoise):
    """Examples are clipped to fifty times the norm that the noise is made for."""

    def prepared(self, message):
        return PrivateNoise.prepared(replace(DEFENSE, clip=50 * self.clip), message)


def fields(defense: PrivateNoise) -> dict[str, object]:
    return {"noise_multiplier": MULTIPLIER, "clip": defense.clip, "batch_size": 8}


def flat(values: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.flatten() for value in values.values()])


def scores(defense: PrivateNoise, generators, runs: int, whole: bool) -> list[torch.Tensor]:
    """Of runs with and without the canary: what was sent, along the canary's clipped gradient.

    Each run is a whole step, or only the noise of one, whose plan and values are then made once.
    """
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    cases = [(INPUTS, TARGETS), (INPUTS[:8], TARGETS[:8])]
    clean, sent = [], []
    for inputs, targets in cases:
        message = GradientMessage(model, cross_entropy, targets)
        clean.append(flat(values_of(DEFENSE.prepared(message), inputs)).float())
        defended = defense.respond(message, inputs, next(generators))
        assert defended.mechanism is not None
        step = partial(defense, message, inputs)
        step = step if whole else partial(defended.mechanism.apply, defended.values)
        sent.append(torch.stack([flat(step(next(generators))) for _ in range(runs)]))
    direction = (clean[0] - clean[1]) / (clean[0] - clean[1]).norm()
    return [rows @ direction for rows in sent]


def stream(generator: torch.Generator):
    while True:
        yield generator


def same_seed():
    while True:
        yield torch.Generator().manual_seed(7)


def lower(defense: PrivateNoise, generators, runs: int = 1500, whole: bool = False) -> float:
    found = scores(defense, generators, runs, whole)
    return epsilon_lower_bound(*found, DELTA, 0.9999, assume="gaussian")


CLAIMED = epsilon_after(MULTIPLIER, 1.0, 1, DELTA)


@pytest.mark.parametrize(
    ("defense", "make"),
    [
        (DEFENSE, lambda: torch.Generator().manual_seed(3)),
        (DEFENSE, SecureGenerator),
        (CONTINUOUS, SecureGenerator),
    ],
)
def test_private_noise_spends_no_more_than_its_account(defense, make):
    assert 0.5 * CLAIMED < lower(defense, stream(make())) < CLAIMED


@pytest.mark.parametrize("kind", [LittleNoise, NoClip])
def test_little_noise_and_a_missing_clip_are_caught(kind):
    wrong = kind(**fields(DEFENSE))
    assert lower(wrong, stream(torch.Generator().manual_seed(4))) > CLAIMED


@pytest.mark.slow
def test_a_seed_that_is_used_again_is_caught():
    assert lower(DEFENSE, same_seed(), 200, whole=True) > CLAIMED


@pytest.mark.slow
def test_whole_steps():
    generators = stream(torch.Generator().manual_seed(5))
    assert 0.5 * CLAIMED < lower(DEFENSE, generators, whole=True) < CLAIMED
    assert lower(LittleNoise(**fields(DEFENSE)), generators, whole=True) > CLAIMED
