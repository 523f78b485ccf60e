"""Columns found, by the tolerance and by category."""

import pytest
import torch

from gradveil.scoring import score_table
from tests.table import LAYOUT, table


def test_a_copy_in_another_order_is_perfect():
    rows, _ = table(5)
    scores = score_table(rows.flip(0), rows, LAYOUT)
    assert scores.summary() == {"accuracy": 1, "continuous": 1, "categorical": 1}
    assert scores.assignment.tolist() == [4, 3, 2, 1, 0]


def test_the_tolerance_decides_on_numbers():
    rows, _ = table(3)
    moved = rows.clone()
    moved[:, 0] += 0.3
    moved[:, 1] += 0.4
    assert score_table(moved, rows, LAYOUT).found["continuous"].double().mean(0).tolist() == [
        1,
        0,
        1,
        1,
    ]


def test_a_blind_guess_has_the_most_frequent_categories():
    rows, _ = table(300)
    guess = LAYOUT.guess(rows)
    scores = score_table(guess.expand_as(rows), rows, LAYOUT).summary()
    shares = [float(rows[:, list(group)].mean(0).max()) for group in LAYOUT.categorical]
    assert scores["categorical"] == pytest.approx(sum(shares) / len(shares))
    assert 0.2 < scores["continuous"] < 0.35


def test_another_layout_is_refused():
    with pytest.raises(ValueError, match=r"shape \(rows, 21\)"):
        score_table(torch.zeros(2, 3), torch.zeros(2, 3), LAYOUT)
