"""Messages of token ids: the gradient with respect to embeddings."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradveil._checks import WHOLE, WrongType, WrongValue
from gradveil._tensors import Tensors

from ._functional import FunctionalLoss, call_with
from ._gradient import GradientMessage
from ._protocol import Message


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


class _Lookups(TorchFunctionMode):
    """Notes each lookup of the given ids, or adds to what some calls of embeddings return.

    A lookup of the ids is one of an index that shares their memory: of the ids themselves, or of a
    view of them. Positions, types and masks that a model makes are none.

    Args:
        ids: What the model gets.
        moves: What is added, by the number of the call; lookups are noted where there is nothing.
    """

    def __init__(self, ids: Tensor, moves: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._ids, self._moves, self._calls = ids, moves, 0
        self.found: list[Lookup] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call it; sparse gradients, which torch differentiates once, are made dense."""
        if func is not F.embedding:
            return func(*args, **(kwargs or {}))
        given = signature(func).bind(*args, **(kwargs or {})).arguments
        output, index = func(**{**given, "sparse": False}), given["input"]
        if not self._moves and self._is_of_ids(index):  # in a transform, memory cannot be asked for
            self.found.append(Lookup(self._calls, given["weight"], self._places(index), output))
        move = self._moves.get(self._calls)
        self._calls += 1
        return output if move is None else output + move.reshape(output.shape)

    def _is_of_ids(self, index: Tensor) -> bool:
        return index.untyped_storage().data_ptr() == self._ids.untyped_storage().data_ptr()

    def _places(self, index: Tensor) -> Tensor:
        every = torch.arange(self._ids.numel(), device=self._ids.device)
        return every.as_strided(index.shape, index.stride(), index.storage_offset()).flatten()


class EmbeddedLoss(FunctionalLoss):
    """The loss as a function of embeddings e: the model reads W[ids] + (e - e₀), with e₀ = W[ids].

    So values and derivatives with respect to W and e are all those of the model at e₀.

    Args:
        loss: The loss as a function of ids.
        ids: What the model gets, whatever the embeddings are.
        lookups: Where it reads e; if there are none, they are noted in `found`.
    """

    def __init__(self, loss: FunctionalLoss, ids: Tensor, lookups: Sequence[Lookup] = ()) -> None:
        self.__dict__.update(loss.__dict__)
        self._ids, self._lookups = ids, lookups
        self.found: list[Lookup] = []

    is_plain = False  # type: ignore[assignment]  # the module itself takes ids

    def _call(self, tensors: Tensors, inputs: Tensor) -> Any:
        ids = self._ids.contiguous().clone()
        with _Lookups(ids, self._moves(inputs)) as mode:
            outputs = call_with(self.model, tensors, ids)
        self.found = mode.found
        return outputs

    def _moves(self, embeddings: Tensor) -> dict[int, Tensor]:
        if not self._lookups:
            return {}
        starts = [lookup.embeddings.flatten(1) for lookup in self._lookups]
        parts = embeddings.flatten(1).split([start.shape[1] for start in starts], 1)
        pairs = zip(self._lookups, parts, starts, strict=True)
        return {lookup.number: e - start for lookup, e, start in pairs}


def find_lookups(loss: FunctionalLoss, ids: Tensor) -> list[Lookup]:
    """Where a model looks up these ids; an error if it does so nowhere."""
    watched = EmbeddedLoss(loss, ids)
    with torch.no_grad():
        watched.outputs(loss.parameters, ids)
    if not watched.found:
        raise WrongType(
            "model",
            "look up `inputs` in an `nn.Embedding`, as they are or a part of them, where they are"
            " integers",
            f"`inputs.dtype = {ids.dtype}` and no lookup in {type(loss.model).__name__}",
            "Convert them with `.float()`, or pass their embeddings to GradientMessage.",
        )
    for lookup in watched.found:
        if lookup.embeddings.shape[0] != len(ids):
            expected = "keep examples first where it looks up its inputs"
            shape = tuple(lookup.embeddings.shape)
            found = f"embeddings of shape {shape} for {len(ids)} examples"
            raise WrongValue("model", expected, found, "Transpose after the lookup.")
    return watched.found


class TokenGradient(GradientMessage):
    """g(ids) = ∇_Θ L, for inputs that are rows of tables: `GradientMessage` for integers.

    Integers have no derivative. What is differentiated is the message as a function of the
    embeddings e = W[ids] that the model reads, the ids being held: sensitivities and bounds are
    with respect to e, shape (examples, ..., width). The table's own gradient, whose row v is
    Σ ∂L/∂e_p over the places p with token v, is a part of the message, and moves with e, too.

    Which rows are not 0 tells the tokens by itself, and no derivative shows that: so the squared
    sensitivities of a table are spread evenly over its rows (`over_rows`), as for a batch whose
    tokens could be any. No defense then leaves out the rows of tokens that the batch does not use.

    The model has to look up the ids, or a view of them, in an `nn.Embedding`; all else in it
    (positions, padding masks) is taken as it is. Several tables may be used: the embeddings are
    then put side by side, shape (examples, all widths). Arguments are those of `GradientMessage`.

    >>> model = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten())
    >>> message = TokenGradient(model, torch.nn.functional.cross_entropy, torch.tensor([0]))
    >>> message(torch.tensor([[3, 1]]))["0.weight"].any(1).tolist()
    [False, True, False, True, False]
    """

    takes_tokens = True

    def embedded(self, ids: Tensor) -> tuple[GradientMessage, Tensor]:
        """The message as a function of the embeddings of these ids, and the embeddings."""
        found = find_lookups(self.loss, ids)
        parts = [lookup.embeddings for lookup in found]
        start = parts[0] if len(parts) == 1 else torch.cat([p.flatten(1) for p in parts], 1)
        loss = EmbeddedLoss(self.loss, ids, found)
        # the ids are held for the whole batch, so examples cannot be taken one by one
        moved = GradientMessage(loss.model, loss.loss_fn, self.targets, separable=False)
        moved.loss = loss
        return moved, start

    def tables(self, ids: Tensor) -> set[str]:
        """The names of the trainable tables in which the ids are looked up."""
        parameters = self.parameters
        read = {id(lookup.table) for lookup in find_lookups(self.loss.at(parameters), ids)}
        return {name for name, parameter in parameters.items() if id(parameter) in read}


def gradient_of(inputs: object) -> type[GradientMessage]:
    """The kind of gradient that takes these inputs: `TokenGradient` for integers."""
    whole = isinstance(inputs, Tensor) and inputs.dtype in WHOLE
    return TokenGradient if whole else GradientMessage


def embedded(message: Message, inputs: Tensor) -> tuple[Message, Tensor]:
    """What can be differentiated: message and inputs, or for tokens those over the embeddings."""
    if not isinstance(message, TokenGradient):
        if getattr(message, "takes_tokens", False):
            raise TypeError(
                "A message of tokens should be a TokenGradient where it is differentiated. Found"
                f" {type(message).__name__}. Its privacy is what its clipping guarantees; for"
                " sensitivities and bounds use noise without clipping."
            )
        return message, inputs
    return message.embedded(inputs)


def over_rows(tensors: Mapping[str, Tensor], message: Message, inputs: Tensor) -> Tensors:
    """Squares with those of tables spread evenly over rows; all others as they are.

    The mean over all ways to give other ids to the tokens of a batch.
    """
    names = message.tables(inputs) if isinstance(message, TokenGradient) else set()
    return {
        name: t.mean(0, keepdim=True).expand(t.shape).contiguous() if name in names else t
        for name, t in tensors.items()
    }


def random_ids(message: GradientMessage, like: Tensor, generator: torch.Generator) -> Tensor:
    """Ids that the model can look up, each as likely as any; of `like` only shape and type count.

    `like` may be of another length: one example says what can be looked up in which place.
    """
    blank = torch.zeros((1, *like.shape[1:]), dtype=like.dtype, device=like.device)
    limits = torch.full((blank.numel(),), torch.inf, dtype=torch.float64, device=like.device)
    for lookup in find_lookups(message.loss, blank):
        limits[lookup.places] = limits[lookup.places].clamp(max=len(lookup.table))
    limits[limits.isinf()] = 1  # never looked up
    shares = torch.rand(
        like.shape, generator=generator, device=generator.device, dtype=torch.float64
    )
    drawn = shares.to(like.device) * limits.reshape(blank.shape)
    return drawn.to(like.dtype)
