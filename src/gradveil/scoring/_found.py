"""Scores of what comes in pieces: tokens of a text, columns of a table."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import WrongValue, check_inputs
from gradveil.data import TableLayout

from ._scores import Guess, best_pairs, check_shapes, parts

TOLERANCE = 0.319
"""In standard deviations: about a quarter of normal numbers are within it around their mean."""


@dataclass(frozen=True)
class PieceScores:
    """Which pieces of each example were found, examples in the order of the truth.

    Examples of a batch come back in any order: these are the scores of the `assignment` with the
    most pieces found.

    >>> found = {"continuous": torch.tensor([[True, False]]), "categorical": torch.tensor([[True]])}
    >>> PieceScores(found, torch.tensor([0])).summary()
    {'accuracy': 0.6666666666666666, 'continuous': 0.5, 'categorical': 1.0}
    """

    found: Mapping[str, Tensor]
    """By the kind of piece whether each one was found, shape (examples, pieces)."""
    assignment: Tensor
    """`assignment[i]` is the place of the reconstruction that was matched to example i."""

    @property
    def accuracy(self) -> Tensor:
        """The share of pieces found, for each example."""
        return torch.cat([*self.found.values()], 1).double().mean(1)

    def summary(self) -> dict[str, float]:
        """The mean over examples and pieces, of all and by kind where there are such pieces."""
        kinds = {name: hits for name, hits in self.found.items() if hits.numel()}
        means = {name: float(hits.double().mean()) for name, hits in kinds.items()}
        return {"accuracy": float(self.accuracy.mean()), **means}


def score_table(
    reconstruction: Guess | Tensor, truth: tuple[Tensor, Tensor] | Tensor, layout: TableLayout
) -> PieceScores:
    """Score rebuilt rows, column by column, as TabLeak does.

    A category is found if it is the right one, a number if it is off by at most `TOLERANCE`.

    Reference: Vero et al., "TabLeak: Tabular Data Leakage in Federated Learning", ICML 2023,
    arXiv:2210.01785.

    >>> layout = TableLayout.of(continuous=1, categories=[2])
    >>> truth = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    >>> score_table(torch.tensor([[2.1, 0.4, 0.6], [0.5, 0.9, 0.1]]), truth, layout).summary()
    {'accuracy': 0.75, 'continuous': 0.5, 'categorical': 1.0}
    """
    (found, _), (rows, _) = parts(reconstruction, "reconstruction"), parts(truth, "truth")
    layout.check(rows, "truth")
    layout.check(found, "reconstruction")
    check_shapes(found, rows)
    found = found.detach().to(rows)
    guesses, each = found[None], rows[:, None]
    near = (layout.numbers(guesses) - layout.numbers(each)).abs() <= TOLERANCE
    same = layout.categories(guesses) == layout.categories(each)
    nearest = 1e-6 * torch.cdist(rows.double(), found.double())  # of as many columns
    return _matched({"continuous": near, "categorical": same}, nearest)


def score_tokens(
    reconstruction: Guess | Tensor, truth: tuple[Tensor, Tensor] | Tensor
) -> PieceScores:
    """Score reconstructed ids of shape (batch, length): a token is found if it is in its place.

    >>> truth = torch.tensor([[1, 2, 3], [7, 5, 6]])
    >>> scores = score_tokens(torch.tensor([[7, 5, 4], [1, 2, 3]]), truth)
    >>> scores.assignment.tolist(), scores.accuracy.tolist()
    ([1, 0], [1.0, 0.666...])
    """
    (guess, _), (wanted, _) = parts(reconstruction, "reconstruction"), parts(truth, "truth")
    check_inputs(wanted, "truth", tokens=True)
    check_inputs(guess, "reconstruction", tokens=True)
    check_shapes(guess, wanted)
    if wanted.dim() != 2:
        raise WrongValue("truth", "have the shape (batch, length)", str(tuple(wanted.shape)))
    return _matched({"tokens": guess.to(wanted)[None] == wanted[:, None]})


def _matched(found: Mapping[str, Tensor], penalty: Tensor | float = 0.0) -> PieceScores:
    """Of tables (truth, guess, pieces); where as many pieces are found, the penalty decides."""
    costs = penalty - torch.cat([*found.values()], -1).sum(-1).double()
    chosen = best_pairs(costs).to(costs.device)
    places = torch.arange(len(chosen), device=costs.device)
    return PieceScores({name: hits[places, chosen] for name, hits in found.items()}, chosen)
