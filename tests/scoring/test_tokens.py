"""The share of tokens in their places, against values computed by hand."""

import pytest
import torch

from gradveil.scoring import score_tokens


def test_a_copy_in_another_order_is_perfect():
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    scores = score_tokens(ids.flip(0), ids)
    assert scores.summary() == {"accuracy": 1, "tokens": 1}
    assert scores.assignment.tolist() == [1, 0]


def test_tokens_count_in_their_places_only():
    truth = torch.tensor([[1, 2, 3, 4, 1], [7, 7, 8, 8, 9]])
    guess = torch.tensor([[7, 7, 0, 0, 9], [2, 2, 1, 4, 0]])
    scores = score_tokens(guess, truth)
    assert scores.assignment.tolist() == [1, 0]
    assert scores.accuracy.tolist() == pytest.approx([2 / 5, 3 / 5])


def test_shapes_have_to_agree():
    with pytest.raises(ValueError, match="should have the shape"):
        score_tokens(torch.tensor([[1, 2]]), torch.tensor([[1, 2, 3]]))
    with pytest.raises(TypeError, match="ids of tokens"):
        score_tokens(torch.tensor([[1.0]]), torch.tensor([[1]]))
