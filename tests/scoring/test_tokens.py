"""Token accuracy and ROUGE against values computed by hand."""

import pytest
import torch

from gradveil.scoring import score_tokens


def test_a_copy_in_another_order_is_perfect():
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    scores = score_tokens(ids.flip(0), ids)
    assert scores.summary() == {"accuracy": 1, "rouge1": 1, "rouge2": 1, "rouge_l": 1}
    assert scores.assignment.tolist() == [1, 0]


def test_rouge_by_hand():
    truth, guess = torch.tensor([[1, 2, 3, 4, 1]]), torch.tensor([[2, 3, 1, 1, 9]])
    scores = score_tokens(guess, truth)
    assert float(scores.accuracy) == 0
    assert float(scores.rouge1) == pytest.approx(4 / 5)  # 2, 3, 1, 1
    assert float(scores.rouge2) == pytest.approx(1 / 4)  # (2, 3)
    assert float(scores.rouge_l) == pytest.approx(3 / 5)  # 2, 3, 1


def test_single_tokens_have_no_pairs():
    assert score_tokens(torch.tensor([[1]]), torch.tensor([[1]])).summary()["rouge2"] == 0


def test_shapes_have_to_agree():
    with pytest.raises(ValueError, match="should have the shape"):
        score_tokens(torch.tensor([[1, 2]]), torch.tensor([[1, 2, 3]]))
    with pytest.raises(TypeError, match="ids of tokens"):
        score_tokens(torch.tensor([[1.0]]), torch.tensor([[1]]))
