"""What `InvertingGradients` tries before it descends: methods that need no matching."""

import torch
from torch import Tensor

from .._attack import Progress
from .._exact import ExactInversion
from .._observation import Observation
from .._peeling import Peel, Peeled
from .._search import Watch
from .._unpooling import Unpool


def closed_form(
    observation: Observation,
    labels: Tensor,
    generator: torch.Generator,
    watch: Watch,
    *,
    unpool: Unpool | None,
    peel: Peel | None,
    progress: Progress | None,
) -> Peeled | None:
    """The batch by unpooling, by exact inversion or by peeling, in this order.

    Unpooling and peeling say whether their guess is sure. Exact inversion returns what it can
    confirm, or nothing.
    """
    heads: list[Tensor] = []
    if unpool is not None and not watch.is_over():
        aside = generator.clone_state()  # peeling stays the same
        unpooled = unpool.solve(observation, labels, aside, watch, progress, heads)
        if unpooled is not None:
            return Peeled(unpooled, solved=True, sure=unpooled.is_certain)
    if peel is None or watch.is_over():
        return None
    exact = ExactInversion().solve(observation, labels, generator, watch, progress)
    if exact is not None:
        return Peeled(exact, solved=True, sure=True)
    if watch.is_over():
        return None
    known = heads[0] if heads else None
    return peel.solve(observation, labels, generator, watch, progress, known)
