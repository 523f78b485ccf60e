"""Random numbers from an explicit generator; the global one is never touched."""

import torch
from torch import Tensor


def generator_or_fresh(generator: torch.Generator | None) -> torch.Generator:
    """The given generator, or a new one seeded by the operating system."""
    if generator is not None:
        if not isinstance(generator, torch.Generator):
            raise TypeError(
                "Parameter `generator` should be a torch.Generator. Found"
                f" {type(generator).__name__} ({generator!r}). For a seed, pass"
                " `torch.Generator().manual_seed(seed)`."
            )
        return generator
    fresh = torch.Generator()
    fresh.seed()
    return fresh


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
