"""Scores of sequences of tokens: accuracy place by place, and ROUGE."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_inputs

from ._scores import Guess, best_pairs


@dataclass(frozen=True)
class TokenScores:
    """Scores of each sequence, in the order of the truth, from 0 to 1.

    Which sequence of a batch comes back in which place is arbitrary: these are the scores of the
    `assignment` with the most tokens in their places, and then the most tokens in common.

    >>> ones = torch.ones(1)
    >>> TokenScores(ones, ones, ones, ones, torch.tensor([0])).accuracy
    tensor([1.])
    """

    accuracy: Tensor
    """The share of tokens in their places."""
    rouge1: Tensor
    """F-measure of tokens in common, whatever their order."""
    rouge2: Tensor
    """F-measure of pairs of neighbours in common."""
    rouge_l: Tensor
    """F-measure of the longest common subsequence."""
    assignment: Tensor
    """`assignment[i]` is the place of the reconstruction that was matched to sequence i."""

    def summary(self) -> dict[str, float]:
        """The mean over sequences, by name."""
        names = ("accuracy", "rouge1", "rouge2", "rouge_l")
        return {name: float(getattr(self, name).mean()) for name in names}


def score_tokens(
    reconstruction: Guess | Tensor, truth: tuple[Tensor, Tensor] | Tensor
) -> TokenScores:
    """Score reconstructed ids of shape (batch, length) against the truth.

    ROUGE is that of Lin (2004) on ids: with m matches between a guess of n and a truth of n tokens
    (pairs, or the longest common subsequence), F = 2 m / (n + n).

    Reference: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004.

    >>> truth = torch.tensor([[1, 2, 3], [7, 5, 6]])
    >>> scores = score_tokens(torch.tensor([[5, 6, 7], [1, 2, 4]]), truth)
    >>> scores.assignment.tolist(), scores.accuracy.tolist(), scores.rouge1.tolist()
    ([1, 0], [0.666..., 0.0], [0.666..., 1.0])
    """
    guess = reconstruction if isinstance(reconstruction, Tensor) else reconstruction.inputs
    wanted = truth if isinstance(truth, Tensor) else truth[0]
    check_inputs(wanted, "truth", tokens=True)
    check_inputs(guess, "reconstruction", tokens=True)
    if guess.shape != wanted.shape or wanted.dim() != 2:
        raise ValueError(
            "Parameter `reconstruction` should have the shape (batch, length) of `truth`. Found"
            f" {tuple(guess.shape)} instead of {tuple(wanted.shape)}. Score each batch by itself."
        )
    found, true = guess.tolist(), wanted.tolist()
    assignment = _match(found, true)
    pairs = [(found[place], sequence) for place, sequence in zip(assignment, true, strict=True)]
    return TokenScores(
        accuracy=_each(_in_place(g, t) for g, t in pairs),
        rouge1=_each(_overlap(g, t, 1) for g, t in pairs),
        rouge2=_each(_overlap(g, t, 2) for g, t in pairs),
        rouge_l=_each(_longest_common(g, t) / len(t) for g, t in pairs),
        assignment=torch.tensor(assignment),
    )


def _match(found: list[list[int]], true: list[list[int]]) -> list[int]:
    costs = [[-_in_place(g, t) - 1e-3 * _overlap(g, t, 1) for g in found] for t in true]
    places: list[int] = best_pairs(torch.tensor(costs, dtype=torch.float64)).tolist()
    return places


def _each(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _in_place(guess: list[int], truth: list[int]) -> float:
    return sum(a == b for a, b in zip(guess, truth, strict=True)) / len(truth)


def _overlap(guess: list[int], truth: list[int], size: int) -> float:
    """The F-measure of tuples of neighbours; 0 where there is none."""
    if len(truth) < size:
        return 0.0
    bags = [Counter(zip(*(row[i:] for i in range(size)), strict=False)) for row in (guess, truth)]
    return (bags[0] & bags[1]).total() / (len(truth) - size + 1)


def _longest_common(guess: list[int], truth: list[int]) -> int:
    """The length of the longest common subsequence, row by row of the usual table."""
    row = [0] * (len(truth) + 1)
    for a in guess:
        last = row
        row = [0]
        for place, b in enumerate(truth):
            row.append(last[place] + 1 if a == b else max(last[place + 1], row[place]))
    return row[-1]
