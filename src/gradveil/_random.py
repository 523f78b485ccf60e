"""Random numbers from an explicit generator; the global one is never touched."""

import hashlib
import os

import torch
from torch import Tensor

_WORDS, _START = 624, 24
"""Of the Mersenne Twister in `torch.Generator.get_state()`: 32 bits each, stored in 64."""


def generator_or_fresh(generator: torch.Generator | None) -> torch.Generator:
    """The given generator, or a new one filled by the operating system."""
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise TypeError(
                "Parameter `generator` should be a torch.Generator. Found"
                f" {type(generator).__name__} ({generator!r}). For a seed, pass"
                " `torch.Generator().manual_seed(seed)`."
            )
        return generator
    return _fresh()


def _fresh() -> torch.Generator:
    """A generator whose whole state comes from the operating system.

    `Generator.seed()` would leave 2³² possible states, of whatever seed torch uses 32 bits: few
    enough to try all, and so to take the noise off what a client sent.
    """
    fresh = torch.Generator()
    state = fresh.get_state()
    words = torch.frombuffer(bytearray(os.urandom(4 * _WORDS)), dtype=torch.int32)
    whole = words.to(torch.int64) & 0xFFFFFFFF
    state[_START : _START + 8 * _WORDS] = whole.view(torch.uint8)
    fresh.set_state(state)
    return fresh


def seed_from(generator: torch.Generator) -> int:
    """A seed that the state of a generator determines; the state stays as it is."""
    state = generator.get_state().numpy().tobytes()
    return int.from_bytes(hashlib.sha256(state).digest()[:7], "big")


def named_stream(*parts: object) -> torch.Generator:
    """A generator whose seed is the first 8 bytes of SHA-256 of ``"gradveil/<part>/<part>/..."``.

    So it depends on nothing else: not on the process, the platform, or what was drawn before.
    """
    text = "/".join(str(part) for part in ("gradveil", *parts))
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def numbered_stream(*numbers: int) -> torch.Generator:
    """The generator of an audit's seed and of the places in it; a function of these numbers.

    New code takes `named_stream`. This one stays, since the numbers of audits that are published
    come from it.
    """
    seed = 0
    for number in numbers:
        seed = (1_000_003 * seed + number + 1) % 2**62
    return torch.Generator().manual_seed(seed)


def advance(generator: torch.Generator) -> None:
    """Draw one number and forget it."""
    torch.empty(1, device=generator.device).uniform_(generator=generator)


def normal_like(reference: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the shape, dtype and device of `reference`."""
    drawn = torch.empty(reference.shape, dtype=reference.dtype, device=generator.device)
    return drawn.normal_(generator=generator).to(reference.device)


def rademacher_like(reference: Tensor, generator: torch.Generator) -> Tensor:
    """Signs, +1 or -1 with probability one half each."""
    drawn = torch.empty(reference.shape, dtype=reference.dtype, device=generator.device)
    return drawn.bernoulli_(0.5, generator=generator).mul_(2).sub_(1).to(reference.device)


def bernoulli(probability: Tensor, generator: torch.Generator) -> Tensor:
    """Zeros and ones, each entry 1 with its own probability."""
    drawn = torch.empty(probability.shape, dtype=probability.dtype, device=generator.device)
    uniform = drawn.uniform_(generator=generator).to(probability.device)
    return (uniform < probability).to(probability.dtype)
