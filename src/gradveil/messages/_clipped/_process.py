"""A computation in a process of its own, which ends with all that its code has kept."""

import contextlib
import io
import mmap
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
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
STARTS = tuple(0.5 * 2**k for k in range(8))
"""Seconds in which it says that it runs; if not, another one is begun. A thread of the parent that
draws random numbers at that moment holds the lock of the generator for ever in the child."""


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
    shared, answer = _shared(like), b""
    for seconds in STARTS:
        there, here = Pipe(duplex=False)
        child = 0
        try:
            with _no_interrupt(), warnings.catch_warnings(), _no_other_draws():
                warnings.simplefilter("ignore", DeprecationWarning)  # of threads: none is needed
                child = os.fork()
                if child == 0:
                    _answer(compute, shared, here)
            here.close()
            if not _received(there, seconds):
                continue
            answer = _received(there, DEADLINE)
            break
        finally:
            with _no_interrupt():
                there.close()
                if child:
                    with contextlib.suppress(OSError):  # it may be gone, and waited for by others
                        os.kill(child, signal.SIGKILL)
                        os.waitpid(child, 0)
    if not answer:
        raise ModelError(
            "model",
            "answer for a single example in a process of its own",
            f"one that was killed, left, or took more than {DEADLINE} s (threads or locks of"
            " its own?)",
            "Replace what cannot run on all examples at once, or use unit='client'.",
        )
    error = _loaded(answer)
    if error is not None:
        raise error
    return shared


def in_a_fork(compute: Callable[[], Tensors | None], like: Tensors) -> Tensors | None:
    """The same for code that meets private data beside a message; `None` without forks."""
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
        sys.setswitchinterval(5e-3)
        torch.default_generator.get_state()  # waits where its lock is held
        pipe.send_bytes(b"started")
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


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Keep Ctrl-C for the end: what Python runs at a fork would swallow it, and leave a child."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # signals are handled in the main thread, and there by Python if it knows how
        return
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if seen:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _no_other_draws() -> Iterator[None]:
    """Let threads that draw random numbers wait for Python, after the draw that they are at."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    try:
        for _ in range(4):  # each takes the generator's lock once more, and all else waits
            torch.default_generator.get_state()
        yield
    finally:
        sys.setswitchinterval(before)


def _received(pipe: "Connection[Any, Any]", seconds: float) -> bytes:
    """What comes in that time; nothing if nothing does, or the other end is gone."""
    with contextlib.suppress(EOFError):
        return pipe.recv_bytes() if pipe.poll(seconds) else b""
    return b""


class _Unpickler(pickle.Unpickler):
    """Makes errors of Python, torch and gradveil only: the code of others would meet an example."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module.split(".")[0] in _SENT else None
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        raise pickle.UnpicklingError(f"`{module}.{name}` is not sent")


_SENT = ("builtins", "torch", "gradveil")


def _loaded(answer: bytes) -> Any:
    return _Unpickler(io.BytesIO(answer)).load()


def _pickled(error: BaseException) -> bytes:
    """An error, or what it says where it cannot be sent."""
    with contextlib.suppress(Exception):
        answer = pickle.dumps(error)
        if type(_loaded(answer)) is type(error):
            return answer
    return pickle.dumps(RuntimeError(first_line(error)))
