"""Rows to columns and back."""

import pytest
import torch

from gradveil.data import TableLayout

LAYOUT = TableLayout(continuous=(2, 0), categorical=((1, 4), (3, 5, 6)))


def test_there_and_back():
    numbers, categories = torch.randn(5, 2), torch.tensor([[0, 2], [1, 0], [1, 1], [0, 0], [0, 1]])
    rows = LAYOUT.encode(numbers, categories)
    assert torch.equal(LAYOUT.numbers(rows), numbers)
    assert torch.equal(LAYOUT.categories(rows), categories)
    assert torch.equal(LAYOUT.harden(rows), rows)


def test_relaxed_groups_are_distributions_in_their_places():
    logits = torch.randn(3, 4, 7)
    rows = LAYOUT.relax(logits)
    assert torch.equal(LAYOUT.numbers(rows), LAYOUT.numbers(logits))
    for group in LAYOUT.categorical:
        torch.testing.assert_close(rows[..., list(group)], logits[..., list(group)].softmax(-1))


def test_a_table_without_categories():
    rows = torch.randn(2, 3)
    layout = TableLayout.of(3)
    assert torch.equal(layout.relax(rows), rows)
    assert layout.categories(rows).shape == (2, 0)


@pytest.mark.parametrize(
    ("continuous", "categorical", "found"),
    [((0, 0), (), "0, 0"), ((1,), (), "1"), ((), (), "[]"), ((0,), ((1,),), "(1,)")],
)
def test_places_are_named_once(continuous, categorical, found):
    with pytest.raises(ValueError, match="should") as caught:
        TableLayout(continuous, categorical)
    assert found in str(caught.value)
