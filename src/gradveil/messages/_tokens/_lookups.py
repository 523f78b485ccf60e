"""Watches a model look up its integer inputs in its tables."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradveil._typing import Tensors

from .._functional import FunctionalLoss, call_with


class Lookup(NamedTuple):
    """One call of an embedding on the inputs, or on a part of them."""

    number: int
    """Of the call, among all calls of embeddings."""
    table: Tensor
    """The weight whose rows are read."""
    places: Tensor
    """Which entries of the flattened inputs are looked up."""
    embeddings: Tensor
    """The rows that were read, in the shape that the model goes on with."""


class _Watch(TorchFunctionMode):
    """Notes each lookup of the given ids: of an index that shares their memory.

    That is the ids themselves, or a view of them. Positions, types and masks that a model makes
    are none.
    """

    def __init__(self, ids: Tensor) -> None:
        super().__init__()
        self._ids, self._calls = ids, 0
        self.found: list[Lookup] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call it; what an embedding returns for the ids is noted."""
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func is F.embedding:
            index, table = (*args, *(kwargs[n] for n in ("input", "weight") if n in kwargs))[:2]
            if index.untyped_storage().data_ptr() == self._ids.untyped_storage().data_ptr():
                self.found.append(Lookup(self._calls, table, self._places(index), output))
            self._calls += 1
        return output

    def _places(self, index: Tensor) -> Tensor:
        every = torch.arange(self._ids.numel(), device=self._ids.device)
        return every.as_strided(index.shape, index.stride(), index.storage_offset()).flatten()


class _Move(TorchFunctionMode):
    """Adds to what some calls of embeddings return, by their numbers."""

    def __init__(self, moves: dict[int, Tensor]) -> None:
        super().__init__()
        self._moves, self._calls = moves, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call it, and add; sparse gradients, which torch differentiates once, are made dense."""
        dense = {"sparse": False} if func is F.embedding else {}
        output = func(*args, **{**(kwargs or {}), **dense})
        if func is F.embedding:
            move = self._moves.get(self._calls)
            output = output if move is None else output + move.reshape(output.shape)
            self._calls += 1
        return output


class EmbeddedLoss(FunctionalLoss):
    """The loss as a function of embeddings e: the model reads W[ids] + (e - e₀), with e₀ = W[ids].

    So values and derivatives with respect to W and e are all those of the model at e₀.
    """

    def __init__(self, loss: FunctionalLoss, ids: Tensor, lookups: Sequence[Lookup]) -> None:
        self.__dict__.update(loss.__dict__)
        self._ids, self._lookups = ids, lookups

    @property
    def is_plain(self) -> bool:
        """Never: the module itself takes ids."""
        return False

    def _call(self, tensors: Tensors, inputs: Tensor) -> Any:
        with _Move(self._moves(inputs)):
            return call_with(self.model, tensors, self._ids.clone())

    def _moves(self, embeddings: Tensor) -> dict[int, Tensor]:
        starts = [lookup.embeddings for lookup in self._lookups]
        parts: Sequence[Tensor] = [embeddings]
        if len(starts) > 1:
            parts = embeddings.split([start[0].numel() for start in starts], 1)
            starts = [start.flatten(1) for start in starts]
        numbers = [lookup.number for lookup in self._lookups]
        return {n: e - start for n, e, start in zip(numbers, parts, starts, strict=True)}


class _WatchedLoss(FunctionalLoss):
    def __init__(self, loss: FunctionalLoss) -> None:
        self.__dict__.update(loss.__dict__)
        self.found: list[Lookup] = []

    def _call(self, tensors: Tensors, inputs: Tensor) -> Any:
        own = inputs.contiguous().clone()
        with _Watch(own) as watch:
            outputs = call_with(self.model, tensors, own)
        self.found = watch.found
        return outputs


def find_lookups(loss: FunctionalLoss, ids: Tensor) -> list[Lookup]:
    """Where a model looks up these ids; an error if it does so nowhere."""
    watched = _WatchedLoss(loss)
    with torch.no_grad():
        watched.outputs(loss.parameters, ids)
    if not watched.found:
        raise TypeError(
            "Parameter `model` should look up `inputs` in an `nn.Embedding`, as they are or a part"
            f" of them, where they are integers. Found `inputs.dtype = {ids.dtype}` and no lookup"
            f" in {type(loss.model).__name__}. Convert them with `.float()`, or pass their"
            " embeddings to GradientMessage."
        )
    for lookup in watched.found:
        if lookup.embeddings.shape[0] != len(ids):
            raise ValueError(
                "Parameter `model` should keep examples first where it looks up its inputs. Found"
                f" embeddings of shape {tuple(lookup.embeddings.shape)} for {len(ids)} examples."
                " Transpose after the lookup."
            )
    return watched.found
