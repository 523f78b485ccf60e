"""Uniform words of AES: as the library makes them, never twice the same, not after a fork."""

import os
import sys

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from gradveil._secure import SecureGenerator
from gradveil._secure import _bits as module
from gradveil._secure._bits import SecureBits, seeded_words


def plain(key: bytes, size: int) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def test_the_stream_is_aes_in_counter_mode_and_erases_its_key(monkeypatch):
    monkeypatch.setattr(module.os, "urandom", lambda size: bytes(range(size)))
    bits = SecureBits()
    first = plain(bytes(range(32)), 32 + 8 * 5)
    assert bits.words(5).tobytes() == first[32:]
    second = plain(first[:32], 32 + 8 * 3)
    assert bits.words(3).tobytes() == second[32:]
    assert bits._key == second[:32]


def test_long_draws_are_cut_into_pieces_of_their_own_keys(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 64)
    monkeypatch.setattr(module.os, "urandom", lambda size: bytes(size))
    drawn = SecureBits().words(11).tobytes()
    first = plain(bytes(32), 32 + 64)
    assert drawn == first[32:] + plain(first[:32], 32 + 24)[32:]


def test_two_sources_and_two_calls_differ():
    first, second = SecureBits(), SecureBits()
    drawn = np.concatenate([first.words(1000), first.words(1000), second.words(1000)])
    assert len(np.unique(drawn)) == 3000


def test_bits_are_uniform():
    words = SecureBits().words(200_000)
    ones = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(200_000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.skipif(sys.platform == "darwin", reason="forking is not safe there")
def test_a_forked_process_draws_other_numbers():
    generator = SecureGenerator()
    generator.words(3)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # no test runs here: the child writes and ends
        os.write(write, generator.words(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 64), dtype=np.uint64)
    ours = generator.words(4)
    assert len(theirs) == 4
    assert not set(theirs.tolist()) & set(ours.tolist())


def test_a_process_of_another_number_starts_anew(monkeypatch):
    bits = SecureBits()
    before = bits._key
    monkeypatch.setattr(module.os, "getpid", lambda: -1)
    drawn = bits.words(4).tobytes()
    assert drawn != plain(before, 64)[32:]
    assert bits._process == -1


def test_seeded_words_repeat_and_fill_all_bits():
    words = [seeded_words(torch.Generator().manual_seed(3), 1000) for _ in range(2)]
    assert (words[0] == words[1]).all()
    assert np.bitwise_or.reduce(words[0]) == 2**64 - 1
    assert np.bitwise_and.reduce(words[0]) == 0
