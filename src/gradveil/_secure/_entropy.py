"""A Mersenne Twister whose whole state comes from the operating system."""

import os

import torch

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
    torch.Generator.set_state(generator, state)
