"""The server: a weighted mean of what clients send, and a torch optimizer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from gradveil._checks import (
    WrongValue,
    check_choice,
    check_count,
    check_finite,
    check_kind,
    check_structure,
)
from gradveil._tensors import Tensors
from gradveil.messages import check_model, trainable_parameters

from ._client import Reply


@dataclass(frozen=True)
class Skip:
    """A client that was asked in a round and does not count in it, and why."""

    client: int
    reason: str


class Server:
    """A model that moves by what clients send.

    FedSGD (`kind="gradient"`): the mean gradient goes to `.grad` and the optimizer takes a step.
    FedAvg (`kind="update"`): minus the mean weight change goes to `.grad`; the default optimizer,
    SGD with rate 1, then adds exactly the mean change.

    Buffers (BatchNorm's running statistics) are no part of a reply and stay as they are. Frozen
    parameters stay, too.

    The optimizer holds all parameters that are trained and no others.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        kind: str = "gradient",
    ) -> None:
        check_choice(kind, "kind", ("gradient", "update"))
        check_model(model)
        if optimizer is None and kind == "gradient":
            advice = "Use for example torch.optim.Adam(model.parameters(), lr=1e-3)."
            raise WrongValue("optimizer", "be given for FedSGD", "None", advice)
        trained = [p for p in model.parameters() if p.requires_grad]
        if optimizer is not None:
            check_kind(optimizer, "optimizer", torch.optim.Optimizer, "Use torch.optim's.")
            _check_optimizer(optimizer, model)
        self.model, self.kind = model, kind
        self.optimizer = optimizer or torch.optim.SGD(trained, lr=1.0)

    @property
    def parameters(self) -> Tensors:
        """What replies should look like: the trainable parameters, by name."""
        return trainable_parameters(self.model)

    def step(self, replies: Iterable[tuple[int, Reply]]) -> tuple[dict[int, Reply], list[Skip]]:
        """Move the model by Σ_k n_k y_k / Σ_k n_k over the good replies y_k with n_k examples.

        With a loss that is a mean over examples and no defense, this is the gradient of all the
        clients' batches together. A reply with other names or shapes than the model's, a NaN, an
        infinity, or no examples does not count, nor does a client's second one. Clients are added
        in the order of their identifiers, whoever answered first. Without a good reply all stays as
        it is; weights that are not finite after the step are an error.

        Returns:
            The replies that count, by client, and the others with the reason.
        """
        check_kind(replies, "replies", Iterable, "Give (identifier, Reply) of each client.")
        expected = self.parameters
        counted: dict[int, Reply] = {}
        refused: list[Skip] = []
        for identifier, reply in replies:
            check_kind(reply, "replies", Reply, "Give (identifier, Reply) of each client.")
            try:
                check_structure(reply.values, expected, "reply.values", "the server's parameters")
                check_finite(reply.values, "reply.values")
                check_count(reply.examples, "reply.examples")
                if identifier in counted:
                    raise ValueError(f"Found two replies of client {identifier}: one counts.")
            except ValueError as error:
                refused.append(Skip(identifier, str(error)))
            else:
                counted[identifier] = reply
        if counted:
            self._move(_mean(counted, expected))
        return counted, refused

    def _move(self, mean: Tensors) -> None:
        sign = 1.0 if self.kind == "gradient" else -1.0
        for name, parameter in self.model.named_parameters():
            parameter.grad = sign * mean[name] if name in mean else None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        check_finite(self.parameters, "the server's parameters after the step")


def _mean(replies: Mapping[int, Reply], expected: Tensors) -> Tensors:
    total = sum(reply.examples for reply in replies.values())
    mean = {name: torch.zeros_like(value) for name, value in expected.items()}
    for _, reply in sorted(replies.items(), key=lambda received: received[0]):
        for name, value in reply.values.items():
            mean[name].add_(value.to(mean[name]), alpha=reply.examples / total)
    return mean


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Require that the optimizer moves this model, and all of it that is trained."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    foreign = len(held - {id(p) for p in model.parameters()})
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if foreign or missing:
        expected = "hold the trainable parameters of `model`, all of them and no others"
        left = f"{missing[:5]}{' and more' if len(missing) > 5 else ''}"
        found = f"{foreign} tensors that are not the model's, and that it misses {left}"
        advice = "Make it from `model.parameters()`; freeze others with `requires_grad_(False)`."
        raise WrongValue("optimizer", expected, found, advice)
