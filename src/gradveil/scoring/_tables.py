"""Scores of rows of a table: which columns were found."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._checks import check_positive
from gradveil.data import TableLayout

from ._scores import Guess, best_pairs

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
    found = reconstruction if isinstance(reconstruction, Tensor) else reconstruction.inputs
    rows = truth if isinstance(truth, Tensor) else truth[0]
    layout.check(rows, "truth")
    layout.check(found, "reconstruction")
    if found.shape != rows.shape:
        raise ValueError(
            "Parameter `reconstruction` should have the shape of `truth`. Found"
            f" {tuple(found.shape)} instead of {tuple(rows.shape)}. Score each batch by itself."
        )
    found = found.detach().to(rows)
    near, same = _hits(found.unsqueeze(0), rows.unsqueeze(1), layout, tolerance)
    costs = -(near.sum(-1) + same.sum(-1)).double()
    costs += 1e-6 * torch.cdist(rows.double(), found.double())
    chosen = best_pairs(costs)
    each = torch.arange(len(rows))
    return TableScores(near[each, chosen], same[each, chosen], chosen)


def _hits(
    found: Tensor, rows: Tensor, layout: TableLayout, tolerance: float
) -> tuple[Tensor, Tensor]:
    near = (layout.numbers(found) - layout.numbers(rows)).abs() <= tolerance
    return near, layout.categories(found) == layout.categories(rows)
