"""Which entries of an encoded row of a table are which columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gradveil._checks import WrongValue, check_inputs


@dataclass(frozen=True)
class TableLayout:
    """Rows of numbers and categories, encoded as one vector each.

    A continuous column is one entry, standardised to mean 0 and variance 1. A column of categories
    is a group of entries, one for each category, of which one is 1 and the others are 0.

    >>> layout = TableLayout.of(continuous=1, categories=[3, 2])
    >>> layout
    TableLayout(continuous=(0,), categorical=((1, 2, 3), (4, 5)))
    >>> layout.encode(torch.tensor([[0.5]]), torch.tensor([[2, 0]]))
    tensor([[0.5000, 0.0000, 0.0000, 1.0000, 1.0000, 0.0000]])
    """

    continuous: tuple[int, ...]
    categorical: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        groups = [tuple(group) for group in self.categorical]
        object.__setattr__(self, "continuous", tuple(self.continuous))
        object.__setattr__(self, "categorical", tuple(groups))
        places = [*self.continuous, *(place for group in groups for place in group)]
        if sorted(places) != list(range(len(places))) or not places:
            own, expected = "Parameters `continuous` and `categorical`", "name each place once"
            raise WrongValue(own, f"{expected}, from 0", str(sorted(places)))
        if any(len(group) < 2 for group in groups):
            expected, advice = "hold groups of at least two places", "Make it a continuous column."
            raise WrongValue("categorical", expected, str(min(groups, key=len)), advice)

    @classmethod
    def of(cls, continuous: int, categories: Sequence[int] = ()) -> "TableLayout":
        """Continuous columns first, then groups of so many categories each."""
        groups, start = [], continuous
        for count in categories:
            groups.append(tuple(range(start, start + count)))
            start += count
        return cls(tuple(range(continuous)), tuple(groups))

    @classmethod
    def from_columns(cls, columns: Sequence[int]) -> "TableLayout":
        """From the number of the column that each entry belongs to.

        A column of one entry is continuous, one of several is a group of categories.

        >>> TableLayout.from_columns([0, 1, 1, 1, 2])
        TableLayout(continuous=(0, 4), categorical=((1, 2, 3),))
        """
        places = [[i for i, own in enumerate(columns) if own == c] for c in dict.fromkeys(columns)]
        alone = tuple(group[0] for group in places if len(group) == 1)
        return cls(alone, tuple(tuple(group) for group in places if len(group) > 1))

    @property
    def width(self) -> int:
        """Entries of an encoded row."""
        return len(self.continuous) + sum(len(group) for group in self.categorical)

    def check(self, rows: Tensor, name: str = "inputs") -> None:
        """Require encoded rows of this layout."""
        check_inputs(rows, name)
        if rows.dim() != 2 or rows.shape[1] != self.width:
            expected = f"have the shape (rows, {self.width}) of the layout"
            advice = "Encode the table with `layout.encode`."
            raise WrongValue(name, expected, str(tuple(rows.shape)), advice)

    def encode(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Rows from columns: numbers of shape (rows, continuous), categories by their number."""
        rows = numbers.new_zeros(len(numbers), self.width)
        rows[:, list(self.continuous)] = numbers
        for column, group in enumerate(self.categorical):
            rows[:, list(group)] = one_hot(categories[:, column], len(group)).to(rows)
        return rows

    def numbers(self, rows: Tensor) -> Tensor:
        """The continuous columns."""
        return rows[..., list(self.continuous)]

    def categories(self, rows: Tensor) -> Tensor:
        """The number of the largest entry of each group."""
        found = [rows[..., list(group)].argmax(-1) for group in self.categorical]
        blank = torch.zeros((*rows.shape[:-1], 0), dtype=torch.int64, device=rows.device)
        return torch.stack(found, -1) if found else blank

    def relax(self, logits: Tensor) -> Tensor:
        """Continuous entries as they are, the softmax of each group."""
        places = list(self.continuous)
        parts = [(places, logits[..., places])] if places else []
        for group in self.categorical:
            parts.append((list(group), logits[..., list(group)].softmax(-1)))
        order = torch.tensor([place for each, _ in parts for place in each], device=logits.device)
        return torch.cat([values for _, values in parts], -1)[..., order.argsort()]

    def harden(self, rows: Tensor) -> Tensor:
        """Continuous entries as they are, and 1 for the largest entry of each group."""
        flat = rows.reshape(-1, self.width)
        return self.encode(self.numbers(flat), self.categories(flat)).reshape(rows.shape)

    def guess(self, examples: Tensor) -> Tensor:
        """What to say of a row without any message: the means and the most frequent categories."""
        self.check(examples, "examples")
        return self.harden(examples.mean(0, keepdim=True))[0]
