"""Derived random streams: what published numbers were drawn from stays what it is."""

import hashlib

import pytest

from gradveil import federated
from gradveil._random import named_stream, numbered_stream


@pytest.mark.parametrize(
    "parts", [(0, "batches", 3, 1), ("studies", 0, "attack", 16), (7, "sampling", 2)], ids=str
)
def test_a_named_stream_is_seeded_by_its_name(parts):
    text = "gradveil/" + "/".join(map(str, parts))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    assert named_stream(*parts).initial_seed() == seed


def test_clients_draw_from_named_streams():
    assert federated.stream is named_stream


def test_a_numbered_stream_is_seeded_by_its_numbers():
    assert numbered_stream(0).initial_seed() == 1
    assert numbered_stream(5, 2).initial_seed() == 6 * 1_000_003 + 3
    assert numbered_stream(0, 1).initial_seed() != numbered_stream(1, 0).initial_seed()
