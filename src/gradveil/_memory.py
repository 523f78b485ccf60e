"""Telling out-of-memory errors from others of the same type."""

import re

import torch

_TEXT = re.compile(r"out of memory|(can't|cannot) allocate memory|not enough memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; on a CPU torch raises a plain RuntimeError.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    True
    >>> is_out_of_memory(RuntimeError("no batching rule"))
    False
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and _TEXT.search(str(error)) is not None
