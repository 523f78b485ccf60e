"""What was sent, read backwards, holds the values it was made from."""

import pytest
import torch

from gradveil.attacks._likelihood import read, with_least_noise
from gradveil.mechanisms import Mechanism, RoundingMechanism

VALUES = {"w": torch.tensor([[3.0, -0.2], [0.7, 0.0]]), "b": torch.tensor(1.3)}
MASK = {"w": torch.tensor([[1.0, 0.0], [0.5, 1.0]]), "b": torch.tensor(1.0)}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_what_cannot_be_read_is_named():
    with pytest.raises(TypeError, match="object"):
        read(object(), VALUES)


def test_a_rounded_entry_says_its_cell():
    mechanism = RoundingMechanism({"w": torch.full((2, 2), 0.5), "b": torch.tensor(0.0)})
    reading = read(mechanism, mechanism.apply(VALUES))
    for name, value in VALUES.items():
        assert bool((reading.low[name] <= value).all())
        assert bool((reading.high[name] >= value).all())
    assert (reading.high["w"] - reading.low["w"]).unique().tolist() == [0.5]
    assert reading.low["b"] == reading.high["b"] == VALUES["b"]
    assert not any(bool(part.any()) for part in (*reading.std.values(), *reading.pruned.values()))
    assert with_least_noise(mechanism, 1.0) is mechanism


def test_noise_and_clamping_are_told_in_the_shapes_of_the_message():
    reading = read(Mechanism(std=0.1, clip=1.0), VALUES)
    assert reading.low["w"] is reading.high["w"] is VALUES["w"]
    assert reading.std["w"].tolist() == [[pytest.approx(0.1)] * 2] * 2
    assert reading.clip["b"].item() == 1.0
    assert torch.isinf(read(Mechanism(std=0.1), VALUES).clip["w"]).all()


def test_of_a_known_mask_its_zeros_are_pruned_noisy_or_not():
    sent = {"w": torch.tensor([[3.0, 0.05], [0.0, 0.0]]), "b": torch.tensor(0.0)}
    reading = read(Mechanism(std=0.1, keep=MASK), sent)
    assert reading.pruned["w"].tolist() == [[False, True], [True, False]]
    assert not bool(reading.pruned["b"])
    assert reading.std["w"][0].tolist() == [pytest.approx(0.1), 0.0]


def test_of_a_mask_that_is_not_known_any_zero_may_be_pruned():
    sent = {"w": torch.tensor([[3.0, 0.05], [0.0, 0.0]]), "b": torch.tensor(0.0)}
    reading = read(Mechanism(std=0.1, keep=MASK), sent, realised=False)
    assert reading.pruned["w"].tolist() == [[False, False], [True, True]]
    assert bool(reading.pruned["b"])
    everything = read(Mechanism(std=0.1, keep=1.0), sent, realised=False)
    assert not any(bool(part.any()) for part in everything.pruned.values())


def test_least_noise_lifts_small_levels_to_the_root_mean_square():
    std = {"a": torch.tensor([3.0, 4.0, 0.0]), "b": torch.tensor(0.0)}
    mechanism = Mechanism(std, keep=1.0, clip=2.0)
    lifted = with_least_noise(mechanism, 1.0)
    level = (25 / 2) ** 0.5
    assert lifted.std["a"].tolist() == pytest.approx([level, 4.0, level])
    assert lifted.std["b"].item() == pytest.approx(level)
    assert (lifted.keep, lifted.clip) == (1.0, 2.0)
    silent = Mechanism({"a": torch.zeros(3)})
    assert with_least_noise(silent, 1.0) is silent
