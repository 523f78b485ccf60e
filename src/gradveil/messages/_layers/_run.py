"""One run of a model with its layers watched."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from gradveil._typing import Tensors

from ._layer_use import LayerUse
from ._recorder import Recorder

Result = TypeVar("Result")


@dataclass(frozen=True)
class Recording(Generic[Result]):
    """What was watched, and what the run returned."""

    uses: list[LayerUse]
    """Uses of parameters in layers that are known."""
    others: set[str]
    """The names of the parameters that are used outside of them."""
    result: Result


def record(
    run: Callable[[], Result],
    parameters: Tensors,
    examples: int,
    opaque: frozenset[str] = frozenset(),
    *,
    embeddings: bool = False,
    copies: bool = False,
) -> Recording[Result]:
    """Run with these parameters and watch where they are used.

    A parameter that is used twice, or both inside and outside of known layers, or with another
    first axis than the examples', makes everything run again with it among the others, where all
    of its uses count together. So does an operation in place on what a layer took or gave, with
    copies.

    Args:
        run: Uses the parameters.
        parameters: Leaves, by name.
        examples: In the batch.
        opaque: Names to be treated as unknown.
        embeddings: Whether embeddings are known layers, too.
        copies: Whether operations in place are kept away from what is recorded.
    """
    with torch.enable_grad(), Recorder(parameters, opaque, copies, embeddings) as recorder:
        result = run()
    if recorder.overwritten:
        return record(run, parameters, examples, opaque, embeddings=embeddings, copies=True)
    shared = _shared(recorder, examples)
    if shared:
        known = opaque | shared
        return record(run, parameters, examples, known, embeddings=embeddings, copies=copies)
    return Recording(recorder.uses, recorder.others, result)


def _shared(recorder: Recorder, examples: int) -> set[str]:
    """Parameters whose uses cannot be looked at one by one."""
    names = [name for use in recorder.uses for name in use.names]
    shared = (recorder.others & set(names)) | {name for name in names if names.count(name) > 1}
    regrouped = [use for use in recorder.uses if not len(use.a) == len(use.h) == examples]
    return shared | {name for use in regrouped for name in use.names}
