"""What `InvertingGradients` tries before it descends: methods that need no matching."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .._attack import Progress
from .._exact import ExactInversion
from .._observation import Observation
from .._peeling import Peel, Peeled, message_misfit, peel_local
from .._reconstruction import INTERRUPTED, Reconstruction
from .._search import Watch, noise_start
from .._unpooling import Unpool

CLEARLY = 0.5
"""One misfit is clearly less than another if it is less than this share of it."""


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
    if observation.local is not None:
        return peel_local(peel, observation, labels, generator, watch, progress)
    known = heads[0] if heads else None
    return peel.solve(observation, labels, generator, watch, progress, known)


def interrupted(
    observations: Sequence[Observation],
    labels: Sequence[Tensor],
    peeled: Sequence[Peeled | None],
    generator: torch.Generator,
) -> list[Reconstruction]:
    """What closed forms had found when they were interrupted; noise where that is nothing."""
    found = [*peeled, *[None] * (len(observations) - len(peeled))]
    return [
        Reconstruction(noise_start(o, 1, generator)[0], own, torch.inf, [], INTERRUPTED)
        if each is None
        else each.guess
        if each.sure
        else replace(each.guess, status=INTERRUPTED)
        for o, own, each in zip(observations, labels, found, strict=True)
    ]


def fits_better(
    observation: Observation, guess: Reconstruction, other: Reconstruction
) -> bool | None:
    """Whether the guess explains the message better than another result; `None` if about alike.

    A cost with total variation does not tell: on a deep untrained model random images explain all
    but 1 % of a message, and the smoothest image has the least cost.
    """
    own, its = (message_misfit(observation, each.inputs, each.targets) for each in (guess, other))
    return own < its if min(own, its) < CLEARLY * max(own, its) else None
