"""The head during FedAvg's local steps: a small problem in the features of all visits."""

import torch
from torch import Tensor

from gradveil._typing import Tensors
from gradveil.messages import LocalSteps

from .._search import Head
from ._visits import Visits

LEAST = 3.0
"""Singular values below so many times the first that must be 0 are left out."""


class LocalHead:
    """What FedAvg's weight change says of its first linear layer u = W h + b and of all after it.

    Visit v has the features h_v and δ_v = ∂L/∂u_v at the parameters of its step. The layer's change

        W_T - W_0 = -lr Σ_v δ_v h_vᵀ    (without momentum)

    has at most as many singular values as there are visits, and where their number is less than
    the layer is wide, the features lie in the span of its rows B: h_v = B m_v. In the coordinates
    m_v the layer is a small one with the weight W_0 B, and its training can be played again with
    the later layers, which gives one equation for each entry that was sent of them. How the layers
    before changed does not matter: it is in the features.

    Unknown are the m_v, and the δ_v beside them: one that is not what the model makes of its
    outputs is a residual of its own. So a unit on the wrong side of a kink spoils its own equation,
    and not all steps after it.
    """

    def __init__(self, head: Head, labels: Tensor, visits: Visits) -> None:
        local = head.observation.local
        assert local is not None
        self.head, self.visits, self.local = head, visits, local
        self.labels = [labels[step] for step in visits.steps]
        change = head.sent("weight")
        assert change is not None
        sizes, rows = torch.linalg.svd(change, full_matrices=False)[1:]
        rank = int((sizes[: len(visits)] > LEAST * sizes[len(visits)]).sum())
        self.basis = rows[:rank]
        self.later = {name: self._parameters[name].detach() for name in head.later}
        self.weight = head.layer.weight.detach() @ self.basis.T
        bias = head.layer.bias
        self.bias = self.weight.new_zeros(len(self.weight)) if bias is None else bias.detach()
        self.sent = self._sent(change)
        self.unit = 1.0

    @property
    def _parameters(self) -> Tensors:
        return dict(self.head.observation.model.named_parameters())

    def _sent(self, change: Tensor) -> Tensors:
        """What was sent of the head, by the names that `played` gives its parts."""
        sent = {name: self.head.observation.sent[name] for name in self.later}
        bias = self.head.sent("bias")
        if bias is not None:
            sent["own bias"] = bias
        return {**sent, "own weight": change @ self.basis.T}

    @property
    def rank(self) -> int:
        """Of the layer's change: the number of coordinates of a visit."""
        return len(self.basis)

    @property
    def unknowns(self) -> int:
        """The coordinates and the δ of all visits."""
        return len(self.visits) * (self.rank + len(self.weight))

    def start(self, places: Tensor) -> Tensor:
        """The unknowns in one row: these coordinates, and the δ that they lead to."""
        slopes = self.played(places)[1]
        return torch.cat([places.flatten(), (slopes / self.unit).flatten()])

    def measure(self, places: Tensor) -> None:
        """Take the size of δ at these coordinates for its unit."""
        self.unit = float(self.played(places)[1].square().mean().sqrt())

    def places(self, row: Tensor) -> Tensor:
        """The coordinates m of all visits, out of the unknowns."""
        return row[: len(self.visits) * self.rank].view(len(self.visits), self.rank)

    def residuals(self, row: Tensor) -> Tensor:
        """Of all equations, in one row: each part relative to its own size."""
        places = self.places(row)
        slopes = row[places.numel() :].view(len(places), -1) * self.unit
        changes, own = self.played(places, slopes)
        parts = [(changes[n] - sent).flatten() / sent.norm() for n, sent in self.sent.items()]
        parts.append((slopes - own).flatten() / (self.unit * slopes.numel() ** 0.5))
        return torch.cat(parts)

    def played(self, places: Tensor, slopes: Tensor | None = None) -> tuple[Tensors, Tensor]:
        """The changes of the head's parameters, and the δ of the model, by playing the steps again.

        The layer itself moves by `slopes` in place of the model's δ if they are given.
        """
        now: Tensors = {**self.later, "own weight": self.weight, "own bias": self.bias}
        begun, moving, deltas = now, {name: torch.zeros_like(p) for name, p in now.items()}, []
        for rows, labels in zip(self.visits.rows(), self.labels, strict=True):
            own = places[rows]
            outputs = own @ now["own weight"].T + now["own bias"]
            later = {name: now[name] for name in self.later}
            gradient, delta = self.head.gradients(outputs, labels, later)
            deltas.append(delta)
            delta = delta if slopes is None else slopes[rows]
            gradient = {**gradient, "own weight": delta.T @ own, "own bias": delta.sum(0)}
            if "own bias" not in self.sent:
                gradient["own bias"] = torch.zeros_like(self.bias)
            now, moving = _step(self.local, now, moving, gradient)
        return {name: now[name] - begun[name] for name in now}, torch.cat(deltas)


def _step(
    local: LocalSteps, now: Tensors, moving: Tensors, gradient: Tensors
) -> tuple[Tensors, Tensors]:
    """One step of SGD with momentum."""
    moving = {name: local.momentum * moving[name] + gradient[name] for name in now}
    return {name: now[name] - local.lr * moving[name] for name in now}, moving
