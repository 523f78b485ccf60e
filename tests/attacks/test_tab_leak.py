"""Rows of a table, rebuilt column by column."""

import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, NoDefense
from gradveil.attacks import TabLeak, ThreatModel, observe
from gradveil.attacks._tab_leak import column_entropy
from gradveil.defenses import Defense
from gradveil.scoring import score_table
from tests.table import LAYOUT, perceptron, table
from tests.text import generator

ROWS, LABELS = table(2, seed=1)
QUICK = TabLeak(LAYOUT, steps=80, starts=4, lr=0.2)


def attacked(defense: Defense, mechanism: str = "known") -> tuple[dict[str, float], torch.Tensor]:
    observation = observe(
        perceptron(),
        cross_entropy,
        (ROWS, LABELS),
        defense,
        threat=ThreatModel(mechanism=mechanism),
        num_classes=2,
        generator=generator(2),
    )
    found = QUICK(observation, generator())
    return score_table(found, ROWS, LAYOUT).summary(), found.entropy


def guess() -> float:
    rows, _ = table(300, seed=5)
    blind = LAYOUT.guess(rows).expand_as(ROWS)
    return score_table(blind, ROWS, LAYOUT).summary()["accuracy"]


def test_rows_are_found_without_a_defense():
    scores, entropy = attacked(NoDefense(), "unknown")
    assert scores["accuracy"] > 0.9 > guess()
    assert entropy.shape == (2, 8)


def test_much_noise_hides_them_and_makes_starts_disagree():
    clear, sure = attacked(GradientNoise(1e-4))
    hidden, unsure = attacked(GradientNoise(10.0))
    assert clear["accuracy"] > 0.9
    assert hidden["accuracy"] < 0.75
    assert float(unsure[:, 4:].mean()) > float(sure[:, 4:].mean())


def test_entropy_by_hand():
    rows = torch.zeros(2, 1, LAYOUT.width)
    rows[:, :, 0] = torch.tensor([[0.0], [2.0]])
    rows[0, :, 4], rows[1, :, 5] = 1.0, 1.0  # the first group of three: two starts disagree
    rows[:, :, 7] = 1.0  # the second: all agree
    entropy = column_entropy(rows, LAYOUT)[0]
    torch.testing.assert_close(entropy[0], torch.tensor(0.5 * (1 + 1.8378770664093453)))
    torch.testing.assert_close(entropy[4], torch.tensor(0.6309297535714574))
    assert float(entropy[5]) == 0
