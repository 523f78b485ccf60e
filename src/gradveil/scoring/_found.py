"""Scores of what comes in pieces: tokens of a text, columns of a table."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_inputs, check_positive
from gradveil.data import TableLayout

from ._scores import Guess, best_pairs, check_shapes, parts

TOLERANCE = 0.319
"""In standard deviations: about a quarter of normal numbers are within it around their mean."""


@dataclass(frozen=True)
class TableScores:
    """Which columns of each row were found, rows in the order of the truth.

    Rows of a batch come back in any order: these are the scores of the `assignment` with the most
    columns found.

    >>> found = torch.tensor([[True, False]])
    >>> TableScores(found, torch.tensor([[True]]), torch.tensor([0])).summary()
    {'accuracy': 0.6666666666666666, 'continuous': 0.5, 'categorical': 1.0}
    """

    continuous: Tensor
    """Whether each continuous column is within the tolerance, shape (rows, columns)."""
    categorical: Tensor
    """Whether each category is the right one, shape (rows, columns)."""
    assignment: Tensor
    """`assignment[i]` is the place of the reconstruction that was matched to row i."""

    @property
    def accuracy(self) -> Tensor:
        """The share of columns found, for each row."""
        return torch.cat([self.continuous, self.categorical], 1).double().mean(1)

    def summary(self) -> dict[str, float]:
        """The mean over rows and columns, of all and by kind where there are such columns."""
        kinds = {"continuous": self.continuous, "categorical": self.categorical}
        means = {name: float(hits.double().mean()) for name, hits in kinds.items() if hits.numel()}
        return {"accuracy": float(self.accuracy.mean()), **means}


def score_table(
    reconstruction: Guess | Tensor,
    truth: tuple[Tensor, Tensor] | Tensor,
    layout: TableLayout,
    tolerance: float = TOLERANCE,
) -> TableScores:
    """Score rebuilt rows, column by column, as TabLeak does.

    A category is found if it is the right one, a number if it is off by at most the tolerance.

    Args:
        reconstruction: What the attack returned, or its encoded rows alone.
        truth: The private rows, or these and their labels.
        layout: Which entries are which columns.
        tolerance: For continuous columns, in their encoded units.

    Reference: Vero et al., "TabLeak: Tabular Data Leakage in Federated Learning", ICML 2023,
    arXiv:2210.01785.

    >>> layout = TableLayout.of(continuous=1, categories=[2])
    >>> truth = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    >>> score_table(torch.tensor([[2.1, 0.4, 0.6], [0.5, 0.9, 0.1]]), truth, layout).summary()
    {'accuracy': 0.75, 'continuous': 0.5, 'categorical': 1.0}
    """
    check_positive(tolerance, "tolerance")
    (found, _), (rows, _) = parts(reconstruction, "reconstruction"), parts(truth, "truth")
    layout.check(rows, "truth")
    layout.check(found, "reconstruction")
    check_shapes(found, rows)
    found = found.detach().to(rows)
    guesses, each = found.unsqueeze(0), rows.unsqueeze(1)
    near = (layout.numbers(guesses) - layout.numbers(each)).abs() <= tolerance
    same = layout.categories(guesses) == layout.categories(each)
    costs = -(near.sum(-1) + same.sum(-1)).double()
    costs += 1e-6 * torch.cdist(rows.double(), found.double())
    chosen, places = best_pairs(costs), torch.arange(len(rows))
    return TableScores(near[places, chosen], same[places, chosen], chosen)


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
    (guess, _), (wanted, _) = parts(reconstruction, "reconstruction"), parts(truth, "truth")
    check_inputs(wanted, "truth", tokens=True)
    check_inputs(guess, "reconstruction", tokens=True)
    check_shapes(guess, wanted)
    if wanted.dim() != 2:
        raise WrongValue("truth", "have the shape (batch, length)", str(tuple(wanted.shape)))
    found, true = guess.tolist(), wanted.tolist()
    costs = [[-_in_place(g, t) - 1e-3 * _overlap(g, t, 1) for g in found] for t in true]
    assignment = best_pairs(torch.tensor(costs, dtype=torch.float64))
    pairs = [(found[place], row) for place, row in zip(assignment.tolist(), true, strict=True)]
    each = {
        "accuracy": [_in_place(g, t) for g, t in pairs],
        "rouge1": [_overlap(g, t, 1) for g, t in pairs],
        "rouge2": [_overlap(g, t, 2) for g, t in pairs],
        "rouge_l": [_longest_common(g, t) / len(t) for g, t in pairs],
    }
    scores = {name: torch.tensor(values, dtype=torch.float64) for name, values in each.items()}
    return TokenScores(assignment=assignment, **scores)


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
