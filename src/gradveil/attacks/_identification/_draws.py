"""The examples of a trial: candidates, the truth among them, and the rest of the batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from gradveil._batches import task_of


class Draw(NamedTuple):
    """Examples for some trials."""

    candidates: tuple[Tensor, Tensor]
    truths: tuple[Tensor, Tensor]
    """The true examples, one for each trial."""
    places: list[int | None]
    """Where the truth is among the candidates."""
    rest: tuple[Tensor, Tensor] | None
    used: Tensor
    """Which examples have a role, as a mask."""


def draw_examples(
    inputs: Tensor,
    targets: Tensor,
    candidates: int,
    count: int,
    batch_size: int,
    one_class: bool,
    among: bool,
    generator: torch.Generator,
) -> Draw:
    """Candidates, truths and the rest of the batch, no example in two of these roles."""
    order = torch.randperm(len(inputs), generator=generator, device=generator.device).cpu()
    labels = targets.cpu()[order]
    needed = candidates if among else candidates + count
    pool = torch.ones(len(labels), dtype=torch.bool)
    if one_class:
        _check_classes(targets)
        pool = labels == _label(labels, needed, generator)
    chosen = pool.nonzero().flatten()[:needed]
    others = torch.ones_like(pool)
    others[chosen] = False
    rest = others.nonzero().flatten()[: batch_size - 1]
    if len(chosen) < needed or len(rest) < batch_size - 1:
        raise ValueError(
            f"Parameter `examples` should hold at least {needed + batch_size - 1} examples, for"
            f" the candidates and the rest of the batch. Found {len(inputs)}. Ask for fewer"
            " candidates."
        )
    chosen, rest = order[chosen].to(inputs.device), order[rest].to(inputs.device)
    some = chosen[:candidates]
    places: list[int | None] = [None] * count
    truths = chosen[candidates:]
    if among:
        picked = torch.randint(candidates, (count,), generator=generator, device=generator.device)
        places, truths = [*picked.tolist()], some[picked.to(some.device)]
    known = (inputs[rest], targets[rest]) if batch_size > 1 else None
    used = torch.zeros(len(inputs), dtype=torch.bool)
    used[torch.cat([chosen, rest]).cpu()] = True
    own = inputs[truths], targets[truths]
    return Draw((inputs[some], targets[some]), own, places, known, used)


def draw_neighbours(
    inputs: Tensor,
    targets: Tensor,
    draw: Draw,
    count: int,
    one_class: bool,
    generator: torch.Generator,
) -> list[tuple[Tensor, Tensor]]:
    """For each of the other places of the batch up to `count` examples, the true one first.

    Fewer where fewer are left beside the candidates: whoever has fewer to choose from knows more.
    """
    order = torch.randperm(len(inputs), generator=generator, device=generator.device).cpu()
    free, sets = ~draw.used[order], []
    for own, label in zip(*(draw.rest or ((), ())), strict=True):
        fitting = free & (targets.cpu()[order] == int(label)) if one_class else free
        others = fitting.nonzero().flatten()[: count - 1]
        if not len(others):
            raise ValueError(
                "Parameter `examples` should hold more than the candidates, for the other places of"
                " the batch. Found none that is left. Ask for fewer candidates."
            )
        free[others] = False
        taken = order[others].to(inputs.device)
        sets.append((_with(own, inputs[taken]), _with(label, targets[taken])))
    return sets


def _with(first: Tensor, others: Tensor) -> Tensor:
    return torch.cat([first.unsqueeze(0), others])


def _check_classes(targets: Tensor) -> None:
    if task_of(targets) != "classification":
        raise ValueError(
            "Parameter `one_class` should be False where targets are not one class label for each"
            f" example. Found True with targets that are {task_of(targets)}."
        )


def _label(labels: Tensor, needed: int, generator: torch.Generator) -> int:
    """That of a random example whose class has enough: means over draws are means over the data."""
    counts = torch.bincount(labels)
    enough = (counts[labels] >= needed).nonzero().flatten()
    if not len(enough):
        raise ValueError(
            f"Parameter `examples` should hold at least {needed} examples of one class. Found at"
            f" most {int(counts.max())}. Ask for fewer candidates, or use"
            " one_class=False."
        )
    place = torch.randint(len(enough), (1,), generator=generator, device=generator.device)
    return int(labels[enough[int(place)]])


def batch_of(draw: Draw, trial: int) -> tuple[Tensor, Tensor]:
    """The client's batch, with the truth at its first place."""
    own = tuple(part[trial : trial + 1] for part in draw.truths)
    if draw.rest is None:
        return own[0], own[1]
    return torch.cat([own[0], draw.rest[0]]), torch.cat([own[1], draw.rest[1]])
