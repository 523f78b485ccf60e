"""Random numbers that nobody can repeat: bits, normals, discrete normals and values on a grid."""

import math
import os
import sys
import threading
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, partial, partialmethod
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradveil._checks import WrongValue, check_count, check_finite, check_tensor
from gradveil._imports import require

_WORDS, _START = 624, 24
"""Of the Mersenne Twister in `torch.Generator.get_state()`: 32 bits each, stored in 64."""


def fill_from_system(generator: torch.Generator) -> None:
    """Overwrite the whole state of a generator with bytes of the operating system.

    `Generator.seed()` would leave 2³² possible states, of whatever seed torch uses 32 bits: few
    enough to try all, and so to take the noise off what a client sent.
    """
    state = torch.Generator().get_state()
    words = torch.frombuffer(bytearray(os.urandom(4 * _WORDS)), dtype=torch.int32)
    whole = words.to(torch.int64) & 0xFFFFFFFF
    state[_START : _START + 8 * _WORDS] = whole.view(torch.uint8)
    state[:8] = torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8)  # `initial_seed`
    torch.Generator.set_state(generator, state)


_KEY, _BLOCK, _WORD, _MOST = 32, 16, 8, 1 << 20
"""Bytes of a key, of a block of AES, of a word, and of the longest piece under one key."""

_ZEROS = memoryview(bytes(_MOST))

_lock, _forks = threading.Lock(), 0
"""Held while an object looks whether it was forked, and how often this process was."""


def _after_fork() -> None:
    """Count a fork, in the child. No other thread is there yet; one of the parent's may have had
    the lock, and would never give it back.
    """
    global _lock, _forks
    _lock, _forks = threading.Lock(), _forks + 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class SecureBits:
    """A stream of uniform 64-bit words: AES-256-CTR, keyed with 256 bits of the system.

    The first 32 bytes of each piece are the key of the next and the old key is dropped: what was
    drawn cannot be computed again, not even from all of the process's memory. A process that is
    forked draws a new key from the system, so no two processes share a stream. Threads may share
    one, also right after a fork: whether there was one, and the new key, are under a lock that was
    made before any of them. Forks are counted, because a child in another PID namespace may have
    its parent's number.
    """

    def __init__(self) -> None:
        if sys.modules.get("cryptography") is None:  # asking takes longer than a draw
            require("secure noise", "gradveil[privacy]", "cryptography")
        self._start()

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` independent words, each uniform on 0 ... 2⁶⁴ - 1."""
        drawn = np.empty(count + _BLOCK // _WORD, dtype=np.uint64)
        target = memoryview(drawn.view(np.uint8))  # type: ignore[arg-type]
        forks = -1
        while forks != _forks:  # again, if the handler of a signal forked in the midst of it
            forks, lock = self._here()
            with lock:
                for start in range(0, _WORD * count, _MOST):
                    size = min(_MOST, _WORD * count - start)
                    self._fill(target[start : start + size + _BLOCK], size)
        return drawn[:count]

    def _here(self) -> tuple[int, threading.Lock]:
        """How often this process was forked, and the lock of its own key, made if need be."""
        with _lock:
            # what runs in a child before `_after_fork` has another number of its process
            if (self._forks, self._process) != (_forks, os.getpid()):
                self._start()
            return self._forks, self._lock

    def _start(self) -> None:
        self._lock = threading.Lock()  # the parent's may be held by a thread that is not here
        self._key, self._forks, self._process = os.urandom(_KEY), _forks, os.getpid()

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


Words = Callable[[int], NDArray[np.uint64]]
"""From a number to so many uniform 64-bit words."""


def uniforms(words: Words, count: int) -> Tensor:
    """`count` numbers k 2⁻⁵³ in [0, 1), each k equally likely, in float64."""
    whole = torch.from_numpy((words(count) >> np.uint64(11)).view(np.int64))
    return whole.to(torch.float64).mul_(2.0**-53)


def normals(words: Words, count: int, dtype: torch.dtype) -> Tensor:
    """`count` standard normal numbers, by the transform of Box and Muller.

    ε₁ = √(-2 ln u) cos 2πv and ε₂ = √(-2 ln u) sin 2πv. u has 53 bits and its logarithm is taken in
    float64, whatever the dtype: tails are right up to 8.5 standard deviations, which is where they
    end (mass 2⁻⁵³).
    """
    drawn = torch.empty(count + count % 2, dtype=dtype)
    for piece in drawn.split(1 << 16):  # which fits into the cache
        _fill(piece, words)
    return drawn[:count]


def _fill(piece: Tensor, words: Words) -> None:
    pairs = len(piece) // 2
    radius = uniforms(words, pairs).add_(2.0**-53).log_().mul_(-2.0).to(piece.dtype).sqrt_()
    angle = _angles(words, pairs, piece.dtype)
    torch.mul(radius, torch.cos(angle), out=piece[:pairs])
    torch.mul(radius, angle.sin_(), out=piece[pairs:])


def _angles(words: Words, count: int, dtype: torch.dtype) -> Tensor:
    """Uniform on [-π, π), of 32 bits for float32 and of 64 for float64."""
    if dtype == torch.float64:
        whole = torch.from_numpy(words(count).view(np.int64))
        return whole.to(dtype).mul_(math.pi * 2.0**-63)
    half = torch.from_numpy(words(count // 2 + count % 2).view(np.int32))[:count]
    return half.to(dtype).mul_(math.pi * 2.0**-31)


class SecureGenerator(torch.Generator):
    """A `torch.Generator` whose noise comes from AES-256 in counter mode, keyed by the system.

    Give it in place of a torch.Generator. What is sent depends on noise, masks and samples; these
    come from the cryptographic stream. What is never sent (probes, dropout) still comes from the
    Mersenne Twister that this is as well, its whole state filled by the system.

    The outputs of a Mersenne Twister determine its state: who sees 624 of them computes all others.
    Here that would take breaking AES-256. There is no seed, and no copy: both would make noise that
    can be computed again.

    Normals cost twice what those of the Mersenne Twister do. Sums in floating point reveal a little
    of what noise was added to, wherever it comes from; discrete noise does not (`GridMechanism`).

    >>> drawn = SecureGenerator().normal(torch.Size([1000]), torch.float32)
    >>> bool(drawn.mean().abs() < 0.3), bool((drawn.std() - 1).abs() < 0.3)
    (True, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.words: Words = SecureBits().words
        fill_from_system(self)

    def uniform(self, shape: torch.Size) -> Tensor:
        """Numbers in [0, 1) with 53 bits, in float64."""
        return uniforms(self.words, shape.numel()).view(shape)

    def normal(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Standard normal numbers."""
        return normals(self.words, shape.numel(), dtype).view(shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SecureGenerator":
        return SecureGenerator()

    def _refuse(self, name: str, *given: object) -> NoReturn:
        raise TypeError(
            f"A SecureGenerator should be made anew for each use. Found `{name}`: numbers that can"
            " be drawn again protect nobody. Use a torch.Generator for runs to repeat."
        )

    manual_seed = partialmethod(_refuse, "manual_seed")
    seed = partialmethod(_refuse, "seed")
    set_state = partialmethod(_refuse, "set_state")
    clone_state = partialmethod(_refuse, "clone_state")
    __reduce_ex__ = partialmethod(_refuse, "pickle")


FINEST, COARSEST = 24, 3
"""The largest and the smallest number of bits: standard deviations of 2²⁴ and of 8 steps."""

_SLABS, _PER_STD, _LOG_CELLS = 320, 8, 16
"""Slabs of an eighth of the standard deviation, up to 40 of them; cells of the table of slabs."""

_DOUBT = 2.0**-46
"""More than the rounding errors of an acceptance probability in float64."""


def discrete_normal(count: int, bits: int, generator: torch.Generator) -> Tensor:
    """`count` independent integers, P(y) ∝ exp(-y² / (2 s²)) with s = 2^bits.

    By rejection. |y| is proposed uniformly within slabs of width s/8, the slab from a table of 2¹⁶
    cells, so that proposals have exactly the probabilities that they are thought to have; it is
    accepted with probability A exp(-y²/(2s²)) / n, n being the slab's cells and A a constant (95 %
    are). Uniform numbers are compared with it in float64; where rounding could matter (once in 2⁴⁵)
    more bits are drawn and the comparison is done exactly. So no floating-point error is left in
    the distribution. It ends at 40 s, where less than 2⁻¹⁰⁰⁰ of its mass is missing.

    Reference: Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
    whose Theorem 4 gives it the concentrated privacy of the continuous Gaussian: integers that
    differ by Δ in the Euclidean norm have Rényi divergence α Δ²/(2 s²) at most.
    """
    check_count(count, "count", least=0)
    check_bits(bits)
    drawn = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        wanted = min(count - done, 1 << 15)  # fits into the cache
        kept = _candidates(wanted + wanted // 16 + 16, bits, words_of(generator))[:wanted]
        drawn[done : done + len(kept)] = kept
        done += len(kept)
    return torch.from_numpy(drawn)


def words_of(generator: torch.Generator) -> Words:
    """The source of uniform words of a generator, secure or not."""
    if isinstance(generator, SecureGenerator):
        return generator.words
    return partial(seeded_words, generator)


def check_bits(bits: int) -> None:
    """Require a number of bits that the sampler has room for."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not COARSEST <= bits <= FINEST:
        expected = f"be an integer from {COARSEST} to {FINEST}: the standard deviation is 2**bits"
        raise WrongValue("bits", f"{expected} steps of the grid", repr(bits), assigned=True)


def _candidates(count: int, bits: int, words: Words) -> NDArray[np.int64]:
    """Those of `count` proposals that are accepted."""
    table, ratios, _ = _slabs()
    first, second = words(count), words(count)
    slab = table[(first >> np.uint64(64 - _LOG_CELLS)).view(np.int64)]
    width = bits - _PER_STD.bit_length() + 1  # of a slab, as a base-2 logarithm
    offset = (first & np.uint64((1 << width) - 1)).view(np.int64)
    size = (slab << width) + offset
    negative = (first >> np.uint64(40)) & np.uint64(1) == 1
    uniform = (second >> np.uint64(11)).view(np.int64)
    chance = size.astype(np.float64)
    chance *= chance
    chance *= -(2.0 ** (-2 * bits - 1))
    torch.from_numpy(chance).exp_()  # in place, and faster than numpy's
    chance *= ratios[slab]
    gap = uniform * 2.0**-53 - chance
    accepted = gap < 0
    for place in np.flatnonzero(np.abs(gap) < _DOUBT):
        args = int(size[place]), bits, int(slab[place]), int(uniform[place])
        accepted[place] = _is_accepted(*args, words)
    accepted &= ~(negative & (size == 0))  # 0 has one sign only
    signed: NDArray[np.int64] = np.where(negative, -size, size)[accepted]
    return signed


@cache
def _slabs() -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[int, NDArray[np.int64]]]:
    """The slab of each cell, A / n for each slab, and (A, n).

    n is above A f at the slab's lower end, f being the density that is 1 at 0: no acceptance
    probability is above 1. The last entry stands for the cells that are left over; its ratio is 0.
    """
    heights = np.exp(-((np.arange(_SLABS) / _PER_STD) ** 2) / 2)
    scale = 1 << _LOG_CELLS
    while (np.floor(scale * heights) + 1).sum() > 1 << _LOG_CELLS:
        scale -= 1
    cells = (np.floor(scale * heights) + 1).astype(np.int64)
    left = (1 << _LOG_CELLS) - int(cells.sum())
    table = np.repeat(np.arange(_SLABS + 1), np.append(cells, left)).astype(np.int64)
    return table, np.append(scale / cells, 0.0), (scale, cells)


def _is_accepted(size: int, bits: int, slab: int, uniform: int, words: Words) -> bool:
    """Whether u < A exp(-size²/(2s²)) / n, u starting with the 53 bits of `uniform`; exact."""
    scale, cells = _slabs()[2]
    if slab >= _SLABS:
        return False
    ratio, length = Fraction(int(scale), int(cells[slab])), 53
    exponent = Fraction(-(size**2), 2 ** (2 * bits + 1))
    while True:
        low, high = _exp_between(exponent, math.ceil(length * 0.302) + 8)
        if Fraction(uniform + 1, 2**length) <= ratio * low:
            return True
        if Fraction(uniform, 2**length) >= ratio * high:
            return False
        uniform, length = (uniform << 64) + int(words(1)[0]), length + 64


def _exp_between(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Two fractions around exp(exponent), equal in about so many decimal digits."""
    with localcontext() as context:
        context.prec = digits + 60  # a dyadic fraction of 59 bits has at most 59 decimal places
        value = (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp()
    error = Fraction(1, 10**digits)
    return Fraction(value) * (1 - error), Fraction(value) * (1 + error)


GRID_BITS = 20
"""The usual fineness: the standard deviation of the noise is 2²⁰ steps."""


def grid_step(std: float, bits: int = GRID_BITS) -> float:
    """The step of the grid on which noise of this standard deviation is drawn: std / 2^bits."""
    return std * 2.0**-bits


def bits_for_grid(noise_multiplier: float, entries: int) -> int:
    """The fineness for noise z C on d entries: 20 bits, or so many more that √d steps are C/1024.

    24 at most, the finest that `discrete_normal` has. Only public numbers go into it.
    """
    needed = math.ceil(math.log2(noise_multiplier * math.sqrt(entries) * 1024))
    return min(FINEST, max(GRID_BITS, needed))


def clip_for_grid(clip: float, entries: int, step: float, *, rounded: str = "each") -> float:
    """The norm to clip to, so that what was rounded to the grid is still within `clip`.

    Rounding moves each of d entries by half a step at most, a vector by √d/2 steps. So an example
    that is clipped to C - √d/2 · step and then rounded has norm C at most ("each": examples are
    rounded one by one, and their sum is exact). Where only the sum of a batch is rounded, adding an
    example may move it by a whole step more in each entry: C - √d · step ("sum").
    """
    slack = 1 + 1e-9  # for the division that finds the nearest step, which is done in float64
    lost = slack * math.sqrt(entries) * step * (0.5 if rounded == "each" else 1.0)
    if lost >= clip:
        changed = f"rounding {entries} entries changes their norm by up to {lost:.3g}"
        found = f"`step = {step}` and `clip = {clip}`"
        advice = "Take a finer grid: more `bits`."
        raise WrongValue("step", f"leave something of the clip: {changed}", found, advice)
    return clip - lost


def release_on_grid(
    values: Tensor, std: float | Tensor, generator: torch.Generator, bits: int = GRID_BITS
) -> Tensor:
    """y = step · (round(values / step) + n), n from the discrete Gaussian of std/step = 2^bits.

    Formal guarantees: y is a function of integers; no property of floating-point numbers (which
    sums can occur, how dense they lie) tells anything about the values beyond their nearest steps.
    For values whose roundings differ by at most Δ in the Euclidean norm, the Rényi divergence of
    order α is at most α Δ²/(2 std²), that of the Gaussian mechanism (`discrete_normal`);
    `clip_for_grid` gives the norm to clip to. The arithmetic before (gradients, sums) is not
    covered: `ClippedMessage` says how sums are kept within the clip.

    With a tensor of levels in the shape of the values each entry has a step of its own, and norms
    are those of values / std. A plain generator is for runs to repeat.
    """
    check_tensor(values, "values")
    check_finite({"values": values})
    check_bits(bits)
    levels = torch.as_tensor(std, dtype=torch.float64, device=values.device)
    alike = levels.shape in (torch.Size([]), values.shape)
    if not alike or not bool((levels > 0).all() & levels.isfinite().all()):
        expected = f"be finite, above 0, and one number or of the shape {tuple(values.shape)}"
        found = (
            f"the shape {tuple(levels.shape)}, and its smallest number {float(levels.min()):.3g}"
        )
        raise WrongValue("std", expected, found, "Send no entry without noise.")
    step = levels * 2.0**-bits
    steps = (values.to(torch.float64) / step).round_()
    if bool((steps.abs() > 2**52).any()):  # sums of two such numbers are exact
        found = f"{float(steps.abs().max()):.3g}"
        expected = f"be within {2**52} steps of the grid"
        raise WrongValue("values", expected, found, "Clip them, or take fewer `bits`.")
    noise = discrete_normal(values.numel(), bits, generator).view(values.shape)
    whole = steps.to(torch.int64) + noise.to(values.device)
    return (whole.to(torch.float64) * step).to(values.dtype)
