"""Where cells run: this machine's processes, or a Ray cluster."""

import os
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from gradveil._checks import check_count
from gradveil._extras import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradveil.studies.runner import Engine


class EngineName(str, Enum):
    """The engine that runs the cells."""

    local = "local"
    ray = "ray"


def chosen_engine(
    name: EngineName, jobs: int | None, address: str | None
) -> "Callable[..., Engine]":
    """What makes the engine; options of its own, as `prepare`, can still be given."""
    if jobs is not None:
        check_count(jobs, "jobs")
    if name is EngineName.ray:
        require("the ray engine", "gradveil[ray]", "ray")
        from gradveil.studies.runner import RayEngine

        return partial(RayEngine, address, jobs)
    if address is not None:
        raise ValueError(
            "Parameter `address` should be left out for the local engine. Found"
            f" `address = {address!r}`. Add `--engine ray`."
        )
    from gradveil.studies.runner import LocalEngine

    return partial(LocalEngine, processors() if jobs is None else jobs)


def processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
