"""Which of the directions found belong together."""

import torch
from torch import Tensor

from ._assembly import agreement
from ._candidates import Candidates

_SWAPS = 2000
"""Exchanges that are tried at once, at most."""


def improve(candidates: Candidates, chosen: Tensor) -> Tensor:
    """Exchange chosen directions for others as long as outputs and zeros then agree better.

    Args:
        candidates: All directions.
        chosen: The places of as many as the rank, linearly independent.
    """
    best = _agreement(candidates, chosen[None])[0]
    for _ in range(len(chosen)):
        swaps = _swaps(candidates, chosen, best)
        if len(swaps) == 0:
            break
        tried = _agreement(candidates, swaps)
        winner = tried.sum(dim=1).argmax()
        if float(tried[winner].sum()) <= float(best.sum()):
            break
        chosen, best = swaps[winner], tried[winner]
    return chosen


def _agreement(candidates: Candidates, sets: Tensor) -> Tensor:
    found = agreement(candidates.factors, candidates.in_rows[sets], candidates.zeros[sets])
    return torch.nan_to_num(found)


def _swaps(candidates: Candidates, chosen: Tensor, own: Tensor) -> Tensor:
    """All sets with one of those that do not agree exchanged, the worst first."""
    others = torch.ones(len(candidates.zeros), dtype=torch.bool)
    others[chosen] = False
    worst = own.argsort()[: int((own < 1).sum())]
    sets = []
    for place in worst.tolist():
        for other in others.nonzero().flatten().tolist():
            changed = chosen.clone()
            changed[place] = other
            sets.append(changed)
    return torch.stack(sets[:_SWAPS]) if sets else chosen[:0]
