"""Uniform words of AES: as the library makes them, never twice the same, not after a fork."""

import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from gradveil import _secure as module
from gradveil._secure import SecureBits, SecureGenerator, seeded_words

can_fork = pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin", reason="forking is not safe here"
)


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


@can_fork
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


@can_fork
def test_what_runs_in_a_child_before_forks_are_counted_draws_other_numbers():
    """As a hook that was registered before this package was imported."""
    bits = SecureBits()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        module._forks -= 1
        os.write(write, bits.words(4).tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 64), dtype=np.uint64)
    assert len(theirs) == 4
    assert not set(theirs.tolist()) & set(bits.words(4).tolist())


@pytest.mark.slow
@can_fork
def test_threads_of_forked_processes_share_no_numbers():
    """80 children, in each four threads that draw at once, right after the fork."""
    bits, read_all = SecureBits(), []
    bits.words(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(80):
            read_all.append(_words_of_threads(bits, 4))
    finally:
        sys.setswitchinterval(interval)
    drawn = np.concatenate([*read_all, bits.words(8)])
    assert len(drawn) == 80 * 4 * 2 + 8
    assert len(np.unique(drawn)) == len(drawn)


def _words_of_threads(bits: SecureBits, threads: int) -> np.ndarray:
    """Two words of each thread of a child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        ready = threading.Barrier(threads)

        def draw() -> None:
            ready.wait()
            os.write(write, bits.words(2).tobytes())

        own = [threading.Thread(target=draw) for _ in range(threads)]
        for thread in own:
            thread.start()
        for thread in own:
            thread.join()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return np.frombuffer(pipe.read(), dtype=np.uint64)


def test_after_a_fork_one_thread_makes_the_key_for_all(monkeypatch):
    """With time for all others to come in between."""
    bits, made = SecureBits(), []
    system = random.Random(0)

    def slow(size: int) -> bytes:
        made.append(bytes(system.getrandbits(8) for _ in range(size)))
        time.sleep(0.05)
        return made[-1]

    monkeypatch.setattr(module.os, "urandom", slow)
    module._after_fork()
    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(lambda _: tuple(bits.words(2)), range(4)))
    assert len(made) == 1
    assert len(set(drawn)) == 4


@can_fork
def test_a_lock_that_a_thread_of_the_parent_held_stops_no_child():
    bits = SecureBits()
    with module._lock, bits._lock:
        assert len(_words_of_threads(bits, 2)) == 4


@can_fork
def test_a_fork_in_the_midst_of_a_draw_shares_nothing(monkeypatch):
    """As in the handler of a signal: the child goes on with the draw that the parent began."""
    bits, fill = SecureBits(), SecureBits._fill
    read, write = os.pipe()
    children: list[int] = []

    def forking(self: SecureBits, target: memoryview, size: int) -> None:
        fill(self, target, size)
        if not children:
            children.append(os.fork())

    monkeypatch.setattr(SecureBits, "_fill", forking)
    ours = bits.words(4)
    if children == [0]:
        os.write(write, ours.tobytes())
        os._exit(0)
    os.waitpid(children[0], 0)
    theirs = np.frombuffer(os.read(read, 64), dtype=np.uint64)
    assert len(theirs) == 4
    assert not set(theirs.tolist()) & set(ours.tolist())


def test_seeded_words_repeat_and_fill_all_bits():
    words = [seeded_words(torch.Generator().manual_seed(3), 1000) for _ in range(2)]
    assert (words[0] == words[1]).all()
    assert np.bitwise_or.reduce(words[0]) == 2**64 - 1
    assert np.bitwise_and.reduce(words[0]) == 0
