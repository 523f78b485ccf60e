import pytest
import torch

from gradveil._tensors import flatten, unflatten
from gradveil.defenses._pruning import keep_lowest, keep_within

from .cases import SWEEPS


def test_flatten_and_back() -> None:
    values = SWEEPS[0].values()
    again = unflatten(flatten(values), values)
    assert list(again) == list(values)
    assert all(torch.equal(again[name], value) for name, value in values.items())


@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_keep_lowest_is_the_head_of_a_stable_sort(levels: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    scores = torch.randint(levels, (97,), generator=generator).double()
    scores[::10] = torch.inf
    order = scores.argsort(stable=True)
    for count in range(len(scores) + 1):
        expected = torch.zeros_like(scores).index_fill_(0, order[:count], 1.0)
        assert torch.equal(keep_lowest(scores, count), expected)


def test_ties_go_by_position() -> None:
    assert keep_lowest(torch.ones(5), 2).tolist() == [1, 1, 0, 0, 0]
    assert keep_lowest(torch.tensor([2.0, 1.0, 2.0, 1.0, 2.0]), 3).tolist() == [1, 1, 0, 1, 0]
    assert keep_within(torch.ones(4), torch.ones(4), 2.5).tolist() == [1, 1, 0.5, 0]


def test_keep_within_fills_in_the_order_of_the_scores() -> None:
    scores, weights = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([4.0, 2.0, 8.0])
    for budget, expected in (
        (0.0, [0, 0, 0]),
        (1.0, [0, 0.5, 0]),
        (2.0, [0, 1, 0]),
        (6.0, [0, 1, 0.5]),
        (13.0, [0.75, 1, 1]),
        (14.0, [1, 1, 1]),
        (99.0, [1, 1, 1]),
    ):
        assert keep_within(scores, weights, budget).tolist() == expected


def test_entries_of_no_weight_are_not_kept() -> None:
    scores, weights = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 0.0])
    assert keep_within(scores, weights, 1.0).tolist() == [0, 1, 0]
    assert keep_within(scores, torch.zeros(3), 0.0).tolist() == [0, 0, 0]
