"""Random numbers from an explicit generator; the global one is never touched."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._checks import WrongType
from gradveil._secure import SecureGenerator, fill_from_system

SMALL = 2**16
"""Entries of a tensor whose secure noise is drawn together with that of others."""


def generator_or_fresh(
    generator: torch.Generator | None, *, secure: bool = False
) -> torch.Generator:
    """The given generator, or a new one that nobody can compute again.

    The new one is a `SecureGenerator`. Where its package is missing it is a Mersenne Twister filled
    by the operating system, or an error with `secure`.
    """
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            found = f"{type(generator).__name__} ({generator!r})"
            advice = "For a seed, pass `torch.Generator().manual_seed(seed)`."
            raise WrongType("generator", "be a torch.Generator", found, advice)
        return generator
    try:
        return SecureGenerator()
    except ModuleNotFoundError:
        if secure:
            raise
        return filled_generator()


def filled_generator() -> torch.Generator:
    """A Mersenne Twister whose whole state comes from the operating system."""
    fresh = torch.Generator()
    fill_from_system(fresh)
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
    if isinstance(generator, SecureGenerator):
        return generator.normal(reference.shape, reference.dtype).to(reference.device)
    drawn = torch.empty(reference.shape, dtype=reference.dtype, device=generator.device)
    return drawn.normal_(generator=generator).to(reference.device)


def small_normals(
    references: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """Standard normal numbers for all small tensors, from a secure generator; else none.

    It draws them in one row: each draw by itself costs as much as some 10,000 numbers.
    """
    if not isinstance(generator, SecureGenerator):
        return {}
    small = {n: r for n, r in references.items() if r.numel() <= SMALL}
    drawn: dict[str, Tensor] = {}
    for dtype in {r.dtype for r in small.values()}:
        own = {n: r for n, r in small.items() if r.dtype == dtype}
        sizes = [r.numel() for r in own.values()]
        parts = generator.normal(torch.Size([sum(sizes)]), dtype).split(sizes)
        drawn |= {n: p.view(own[n].shape) for n, p in zip(own, parts, strict=True)}
    return {n: p.to(references[n].device) for n, p in drawn.items()}


def rademacher_like(reference: Tensor, generator: torch.Generator) -> Tensor:
    """Signs, +1 or -1 with probability one half each."""
    drawn = torch.empty(reference.shape, dtype=reference.dtype, device=generator.device)
    return drawn.bernoulli_(0.5, generator=generator).mul_(2).sub_(1).to(reference.device)


def bernoulli(probability: Tensor, generator: torch.Generator) -> Tensor:
    """Zeros and ones, each entry 1 with its own probability."""
    if isinstance(generator, SecureGenerator):
        secure = generator.uniform(probability.shape).to(probability.device)
        return (secure < probability).to(probability.dtype)
    drawn = torch.empty(probability.shape, dtype=probability.dtype, device=generator.device)
    uniform = drawn.uniform_(generator=generator).to(probability.device)
    return (uniform < probability).to(probability.dtype)
