"""The server: a weighted mean of what clients send, and a torch optimizer."""

from collections.abc import Iterable

import torch
from torch import nn

from gradveil._checks import check_choice, check_finite, check_kind, check_values
from gradveil._typing import Tensors
from gradveil.messages import check_model, trainable_parameters

from ._reply import Reply

Received = tuple[int, Reply]
"""A reply and the identifier of the client it came from."""


def aggregate(replies: Iterable[Received], expected: Tensors) -> Tensors:
    """Σ_k n_k y_k / Σ_k n_k over the replies y_k of clients with n_k examples.

    With a loss that is a mean over examples and no defense, this is the gradient of all the
    clients' batches together. Clients are added in the order of their identifiers, so the result
    does not depend on who answered first.

    Raises:
        ValueError: If there is no reply, if two come from one client, or if one has other names
            or shapes than `expected`, a NaN, an infinity, or no examples.

    >>> from gradveil.federated import Reply
    >>> first, second = Reply({"w": torch.ones(1)}, 1), Reply({"w": torch.full((1,), 4.0)}, 2)
    >>> aggregate([(0, first), (1, second)], {"w": torch.zeros(1)})
    {'w': tensor([3.])}
    """
    check_values(expected, "expected")
    ordered = sorted(_received(replies), key=lambda received: received[0])
    _check(ordered, expected)
    total = sum(reply.examples for _, reply in ordered)
    mean = {name: torch.zeros_like(value) for name, value in expected.items()}
    for _, reply in ordered:
        for name, value in reply.values.items():
            mean[name].add_(value.to(mean[name]), alpha=reply.examples / total)
    return mean


def _received(replies: Iterable[Received]) -> list[Received]:
    """Require pairs of a client's identifier and its reply."""
    check_kind(replies, "replies", Iterable, "Give (identifier, Reply) of each client.")
    received = list(replies)
    for pair in received:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Reply)):
            raise TypeError(
                "Parameter `replies` should hold pairs of an identifier and a Reply. Found"
                f" {type(pair).__name__}. Give (identifier, Reply) of each client."
            )
    return received


def admit(
    replies: Iterable[Received], expected: Tensors
) -> tuple[list[Received], list[tuple[int, str]]]:
    """The replies that `aggregate` takes, and (client, reason) for each of the others.

    The first reply of a client counts; further ones are refused.
    """
    admitted: dict[int, Reply] = {}
    refused: list[tuple[int, str]] = []
    for identifier, reply in replies:
        try:
            reply.check(expected)
            _check_new(identifier, admitted)
        except ValueError as error:
            refused.append((identifier, str(error)))
        else:
            admitted[identifier] = reply
    return list(admitted.items()), refused


class Server:
    """A model that moves by what clients send.

    FedSGD (`kind="gradient"`): the mean gradient goes to `.grad` and the optimizer takes a step.
    FedAvg (`kind="update"`): minus the mean weight change goes to `.grad`; the default optimizer,
    SGD with rate 1, then adds exactly the mean change.

    Buffers (BatchNorm's running statistics) are no part of a reply and stay as they are. Frozen
    parameters stay, too.

    Args:
        model: The global model; its parameters are changed in place.
        optimizer: Over the model's parameters, all that are trained and no others. Optional for
            "update".
        kind: "gradient" or "update".

    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 2])
    >>> server = Server(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> type(server.model).__name__
    'MLP'
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        kind: str = "gradient",
    ) -> None:
        check_choice(kind, "kind", ("gradient", "update"))
        check_model(model)
        if optimizer is not None:
            check_kind(optimizer, "optimizer", torch.optim.Optimizer, "Use torch.optim's.")
        if optimizer is None and kind == "gradient":
            raise ValueError(
                "Parameter `optimizer` should be given for FedSGD. Found None. Use for example"
                " torch.optim.Adam(model.parameters(), lr=1e-3)."
            )
        trained = [p for p in model.parameters() if p.requires_grad]
        if optimizer is not None:
            _check_optimizer(optimizer, model)
        self.model, self.kind = model, kind
        self.optimizer = optimizer or torch.optim.SGD(trained, lr=1.0)

    @property
    def parameters(self) -> Tensors:
        """What replies should look like: the trainable parameters, by name."""
        return trainable_parameters(self.model)

    def step(self, replies: Iterable[Received]) -> None:
        """Average the replies and move the model; weights that are not finite are an error."""
        mean = aggregate(replies, self.parameters)
        sign = 1.0 if self.kind == "gradient" else -1.0
        for name, parameter in self.model.named_parameters():
            parameter.grad = sign * mean[name] if name in mean else None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        check_finite(self.parameters, "the server's parameters after the step")


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Require that the optimizer moves this model, and all of it that is trained."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for p in model.parameters()}
    foreign = len(held - own)
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if foreign or missing:
        raise ValueError(
            "Parameter `optimizer` should hold the trainable parameters of `model`, all of them and"
            f" no others. Found {foreign} tensors that are not the model's, and that it misses"
            f" {missing[:5]}{' and more' if len(missing) > 5 else ''}. Make it from"
            " `model.parameters()`; to leave some out, freeze them with `requires_grad_(False)`."
        )


def _check(ordered: list[Received], expected: Tensors) -> None:
    if not ordered:
        raise ValueError(
            "Parameter `replies` should hold at least one reply. Found none. Skip this round."
        )
    seen: dict[int, Reply] = {}
    for identifier, reply in ordered:
        _check_new(identifier, seen)
        reply.check(expected)
        seen[identifier] = reply


def _check_new(identifier: int, seen: dict[int, Reply]) -> None:
    if identifier in seen:
        raise ValueError(
            f"Parameter `replies` should hold one reply for each client. Found two of client"
            f" {identifier}. Give every client its own identifier."
        )
