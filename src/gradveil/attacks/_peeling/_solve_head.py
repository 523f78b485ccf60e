"""The outputs of a model's first linear layer, from the head's own equations."""

import torch
from torch import Tensor

from gradveil._random import normal_like, seed_from

from .._attack import Progress
from .._evidence import TotalVariation, euclidean_evidence
from .._reconstruction import FINISHED
from .._search import (
    Cost,
    Descent,
    Head,
    HeadEquations,
    Objective,
    Refined,
    Watch,
    minimise,
    refine,
)
from ._solve_last import last_layer_of, solve_last

SOLVED = 1e-3
"""The relative misfit of the head's equations that counts as 0 ..."""
ROUGHLY = 0.05
"""... and that is put down to noise, where the layer's gradient shows some."""
STARTS = 64
AGAIN = 1
"""How often the last layer is tried again."""


def solve_head(
    head: Head,
    labels: Tensor,
    steps: int,
    generator: torch.Generator,
    watch: Watch,
    progress: Progress | None,
) -> tuple[Tensor | None, str]:
    """U from the last layer's logits, or else from many starts around what random inputs give.

    Where both fail, the last layer is tried again: of trained models it is the easier problem. It
    has no equations to spare for noise, and is left out where there is some.
    """
    equations = HeadEquations(head, labels)
    aside = torch.Generator().manual_seed(seed_from(generator))  # the starts stay the same
    if head.noise > 0:
        return _search(equations, labels, steps, generator, watch, progress)
    known = _from_last_layer(equations, labels, aside, watch)
    if known is not None:
        return known, FINISHED
    found, status = _search(equations, labels, steps, generator, watch, progress)
    for _ in range(AGAIN):
        if found is None and status == FINISHED:
            found = _from_last_layer(equations, labels, aside, watch)
    return found, status


def _search(
    equations: HeadEquations,
    labels: Tensor,
    steps: int,
    generator: torch.Generator,
    watch: Watch,
    progress: Progress | None,
) -> tuple[Tensor | None, str]:
    """From many starts."""
    head = equations.head
    scale = float(head.outputs.square().mean().sqrt())
    blank = head.outputs.new_empty(STARTS, len(labels), head.outputs.shape[1])
    start = head.outputs.mean(0) + scale * normal_like(blank, generator)
    descent = Descent(steps, scale / 8, "adam", "cosine", time_budget=watch.left(), settled=0.9)
    minimum = minimise(_annealed(equations, head, scale), start, descent, progress=progress)
    refined = _refined(equations, minimum.inputs[int(minimum.costs.argmin())], watch)
    status = minimum.status if minimum.status != FINISHED else refined.status
    limit = SOLVED if head.noise == 0 else ROUGHLY
    return (refined.inputs if refined.cost < limit else None), status


def _refined(equations: HeadEquations, outputs: Tensor, watch: Watch) -> Refined:
    equations.head.sharpen()
    objective = Objective(equations, equations.evidence, TotalVariation(0.0))
    return refine(objective, outputs, steps=10, products=100, watch=watch, tolerance=1e-3)


def _from_last_layer(
    equations: HeadEquations, labels: Tensor, generator: torch.Generator, watch: Watch
) -> Tensor | None:
    """U whose image under the layers in between is what the last layer's equations give."""
    head = equations.head
    problem = last_layer_of(head, labels)
    logits = None if problem is None else solve_last(problem, generator, watch)
    if problem is None or logits is None:
        return None
    head.sharpen()
    features = problem.features(logits)
    objective = Objective(
        lambda outputs: head.inputs_of(problem.layer, outputs),
        euclidean_evidence(features.flatten()),
        TotalVariation(0.0),
    )
    begun = refine(objective, features, steps=10, products=100, watch=watch, tolerance=1e-9)
    refined = _refined(equations, begun.inputs, watch)
    return refined.inputs if refined.cost < SOLVED and refined.status == FINISHED else None


def _annealed(equations: HeadEquations, head: Head, scale: float) -> Cost:
    def cost(outputs: Tensor, progress: float) -> Tensor:
        head.twin.set_width(scale * 1e-3 ** min(1.0, progress / 0.9))
        return equations.evidence.misfit(equations(outputs))

    return cost
