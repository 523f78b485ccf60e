"""Sampling of the clients that are asked in a round."""

from collections.abc import Sequence

import torch

from gradveil._checks import check_kind, check_number, check_seed
from gradveil._random import named_stream


def sample_clients(identifiers: Sequence[int], fraction: float, seed: int, round: int) -> list[int]:
    """`count_asked` of them, drawn anew in every round, in order.

    They come from the stream (seed, "sampling", round).

    >>> sample_clients([0, 1, 2, 3], 1.0, seed=0, round=1)
    [0, 1, 2, 3]
    """
    check_kind(identifiers, "identifiers", (list, tuple, range), "Give the clients' numbers.")
    if not identifiers:
        raise ValueError("Parameter `identifiers` should hold at least one. Found none.")
    check_seed(seed)
    count = count_asked(len(identifiers), fraction)
    drawn = torch.randperm(len(identifiers), generator=named_stream(seed, "sampling", round))
    return sorted(identifiers[i] for i in drawn[:count].tolist())


def count_asked(clients: int, fraction: float) -> int:
    """⌊fraction · clients + 1/2⌋, at least 1."""
    check_number(fraction, "fraction")
    if not 0 < fraction <= 1:
        raise ValueError(
            f"Parameter `fraction` should be in (0, 1]. Found `fraction = {fraction}`."
            " For percentages, divide by 100."
        )
    return max(1, int(fraction * clients + 0.5))
