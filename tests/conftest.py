"""What all tests share: few threads, Ctrl-C that works, a watch over the global random state."""

import signal
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # the tests' tensors are tiny: more threads only wait for each other

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def global_rng_watch() -> Iterator[None]:
    """Fail the test if it moved torch's global generator."""
    before = torch.default_generator.get_state()
    yield
    assert torch.equal(before, torch.default_generator.get_state()), (
        "The global random state of torch should be as it was. Found it changed."
    )


@pytest.fixture
def generator() -> torch.Generator:
    """A generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
