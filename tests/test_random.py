"""Derived random streams: what published numbers were drawn from stays what it is."""

import hashlib

import pytest
import torch

from gradveil._random import SMALL, named_stream, numbered_stream, small_normals
from gradveil._secure import SecureGenerator


@pytest.mark.parametrize(
    "parts", [(0, "batches", 3, 1), ("studies", 0, "attack", 16), (7, "sampling", 2)], ids=str
)
def test_a_named_stream_is_seeded_by_its_name(parts):
    text = "gradveil/" + "/".join(map(str, parts))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    assert named_stream(*parts).initial_seed() == seed


def test_a_numbered_stream_is_seeded_by_its_numbers():
    assert numbered_stream(0).initial_seed() == 1
    assert numbered_stream(5, 2).initial_seed() == 6 * 1_000_003 + 3
    assert numbered_stream(0, 1).initial_seed() != numbered_stream(1, 0).initial_seed()


def test_small_secure_normals_are_drawn_together_and_are_standard_normal() -> None:
    like = {
        "a": torch.zeros(300, 20),
        "b": torch.zeros(4000, dtype=torch.float64),
        "scalar": torch.zeros(()),
        "large": torch.zeros(SMALL + 1),
    }
    drawn = small_normals(like, SecureGenerator())
    assert {n: (d.shape, d.dtype) for n, d in drawn.items()} == {
        n: (t.shape, t.dtype) for n, t in like.items() if n != "large"
    }
    row = torch.cat([d.double().reshape(-1) for d in drawn.values()])
    assert abs(float(row.mean())) < 6 / len(row) ** 0.5
    assert abs(float(row.var()) - 1) < 6 * (2 / len(row)) ** 0.5
    assert len(row.unique()) > 0.99 * len(row)
    assert small_normals(like, torch.Generator()) == {}
