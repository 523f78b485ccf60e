"""A computation in a process of its own, which ends with all that its code has kept."""

import contextlib
import mmap
import os
import pickle
import signal
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch

from gradveil._checks import first_line
from gradveil._tensors import Tensors

from .._protocol import ModelError

CAN_FORK = hasattr(os, "fork")

_ALIGNED = 64
"""Bytes: where a tensor may begin."""


DEADLINE = 600
"""Seconds that a process has for one example."""


def in_a_process(compute: Callable[[], Tensors], like: Tensors) -> Tensors:
    """What `compute` returns in a process of its own; what it raises there is raised here.

    The process is a fork of this one: it has a copy of all memory, so whatever its code writes,
    into weights, globals, closures, generators, is gone when it ends, and nothing but the result is
    seen here. What it returns is written into memory that both have.

    Args:
        compute: Run there.
        like: Tensors on the processor, in the shapes and types of the result.

    >>> before = []
    >>> def compute():
    ...     before.append(1)
    ...     return {"calls": torch.tensor(len(before))}
    >>> [int(in_a_process(compute, {"calls": torch.tensor(0)})["calls"]) for _ in range(3)]
    [1, 1, 1]
    """
    shared = _shared(like)
    there, here = Pipe(duplex=False)
    with warnings.catch_warnings():  # of other threads, none of which the child has or needs
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(compute, shared, here)
    here.close()
    try:
        answer = there.recv_bytes() if there.poll(DEADLINE) else b""
    except EOFError:
        answer = b""
    finally:
        there.close()
        with contextlib.suppress(OSError):  # it may be gone, and waited for by others
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not answer:
        raise _child_error(
            f"one that was killed, left, or took more than {DEADLINE} s (threads or locks of"
            " its own?)"
        )
    error = pickle.loads(answer)
    if error is not None:
        raise error
    return shared


def in_a_fork(compute: Callable[[], Tensors | None], like: Tensors) -> Tensors | None:
    """What `compute` returns in a process of its own; `None` where there can be none.

    For code that meets private data beside a message, and may keep something of it.
    """
    if not CAN_FORK or torch.cuda.is_initialized():
        return None
    return in_a_process(lambda: compute() or {}, like)


def _shared(like: Tensors) -> Tensors:
    """Tensors in memory that a process has together with its forks."""
    sizes = [-(-v.numel() * v.element_size() // _ALIGNED) * _ALIGNED for v in like.values()]
    memory = torch.frombuffer(mmap.mmap(-1, sum(sizes) or 1), dtype=torch.uint8)
    pieces = memory[: sum(sizes)].split(sizes)
    return {
        n: piece[: v.numel() * v.element_size()].view(v.dtype).view(v.shape)
        for (n, v), piece in zip(like.items(), pieces, strict=True)
    }


def _answer(compute: Callable[[], Tensors], shared: Tensors, pipe: "Connection[Any, Any]") -> None:
    """What the child does, and all that it does."""
    try:
        _open_again()
        torch.set_num_threads(1)  # the others are not there
        for name, value in compute().items():
            shared[name].copy_(value.detach())
        answer = pickle.dumps(None)
    except BaseException as error:
        answer = _pickled(error)
    with contextlib.suppress(BaseException):
        pipe.send_bytes(answer)
    os._exit(0)


def _open_again() -> None:
    """Give this process files of its own: how far one was read is shared with forks (on Linux)."""
    from fcntl import F_GETFL, fcntl  # not on Windows

    names = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    for file in map(int, names):
        with contextlib.suppress(OSError):  # pipes and terminals have no place
            place = os.lseek(file, 0, os.SEEK_CUR)
            own = os.open(f"/proc/self/fd/{file}", fcntl(file, F_GETFL))
            os.lseek(own, place, os.SEEK_SET)
            os.dup2(own, file)
            os.close(own)


def _pickled(error: BaseException) -> bytes:
    """An error, or what it says where it cannot be sent."""
    with contextlib.suppress(Exception):
        answer = pickle.dumps(error)
        if type(pickle.loads(answer)) is type(error):
            return answer
    return pickle.dumps(_child_error(first_line(error)))


def _child_error(found: str) -> ModelError:
    expected = "answer for a single example in a process of its own"
    advice = "Replace what cannot run on all examples at once, or use unit='client'."
    return ModelError("model", expected, found, advice)
