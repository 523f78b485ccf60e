"""Uniform random bits of AES-256 in counter mode."""

import os
import threading

import numpy as np
import torch
from numpy.typing import NDArray

from gradveil._extras import require

_KEY, _BLOCK, _WORD, _MOST = 32, 16, 8, 1 << 20
"""Bytes of a key, of a block of AES, of a word, and of the longest piece under one key."""

_ZEROS = memoryview(bytes(_MOST))


class SecureBits:
    """A stream of uniform 64-bit words: AES-256-CTR, keyed with 256 bits of the system.

    The first 32 bytes of each piece are the key of the next and the old key is dropped: what was
    drawn cannot be computed again, not even from all of the process's memory. A process that is
    forked draws a new key from the system, so no two processes share a stream. Threads may share
    one.
    """

    def __init__(self) -> None:
        require("secure noise", "gradveil[privacy]", "cryptography")
        self._start()

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` independent words, each uniform on 0 ... 2⁶⁴ - 1."""
        if os.getpid() != self._process:
            self._start()
        drawn = np.empty(count + _BLOCK // _WORD, dtype=np.uint64)
        target = memoryview(drawn.view(np.uint8))  # type: ignore[arg-type]
        with self._lock:
            for start in range(0, _WORD * count, _MOST):
                size = min(_MOST, _WORD * count - start)
                self._fill(target[start : start + size + _BLOCK], size)
        return drawn[:count]

    def _start(self) -> None:
        self._lock = threading.Lock()  # the parent's may be held by a thread that is not here
        self._key, self._process = os.urandom(_KEY), os.getpid()

    def _fill(self, target: memoryview, size: int) -> None:
        """Overwrite the first `size` bytes; the target has a block more, as some versions want."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        encryptor = Cipher(algorithms.AES(self._key), modes.CTR(bytes(_BLOCK))).encryptor()
        self._key = encryptor.update(_ZEROS[:_KEY])
        encryptor.update_into(_ZEROS[:size], target)


def seeded_words(generator: torch.Generator, count: int) -> NDArray[np.uint64]:
    """The same from a plain generator, for runs that can be repeated and protect nobody."""
    drawn = torch.empty(count, dtype=torch.int64, device=generator.device)
    words: NDArray[np.int64] = drawn.random_(-(2**63), None, generator=generator).cpu().numpy()
    return words.view(np.uint64)
