"""Measurement of the peak of live tensor memory, allocation by allocation."""

import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of every storage that operations return while it is entered.

    `peak` is the most that was alive at once, beyond what existed before. Scratch space inside an
    operation is not seen.

    >>> with PeakMemory() as memory:
    ...     total = torch.ones(1000).sum()
    >>> memory.peak >= 4000
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation and count what it returned."""
        known = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if _has_memory(t)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if _has_memory(leaf) and id(leaf.untyped_storage()) not in known:
                self._count(leaf)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._known:
            return
        key, size = id(storage), storage.nbytes()
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def peak_of(job: Callable[[], object]) -> int:
    """The peak of one run."""
    allowed = patch("gradveil.messages._clipped._isolated._foreign_mode", return_value=None)
    with allowed, PeakMemory() as memory:  # a mode like this one would end the run at once
        job()
    return int(memory.peak)


def _has_memory(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided
