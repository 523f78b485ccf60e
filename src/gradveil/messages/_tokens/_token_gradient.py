"""The gradient of a model that reads integers: tokens, or categories by their number."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gradveil._checks import WHOLE
from gradveil._typing import Tensors

from .._gradient import GradientMessage
from .._protocol import Message
from ._lookups import EmbeddedLoss, find_lookups


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
    """The kind of gradient that takes these inputs: `TokenGradient` for integers.

    >>> gradient_of(torch.tensor([[1, 2]])).__name__
    'TokenGradient'
    """
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
