"""Rows of a table, rebuilt column by column."""

from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, NoDefense
from gradveil.attacks import TabLeak, ThreatModel, observe
from gradveil.defenses import Defense
from gradveil.scoring import score_table
from tests.table import LAYOUT, perceptron, table
from tests.text import generator

ROWS, LABELS = table(2, seed=1)
QUICK = TabLeak(steps=80, starts=4, lr=0.2)


def attacked(defense: Defense, mechanism: str = "known") -> dict[str, float]:
    observation = observe(
        perceptron(),
        cross_entropy,
        (ROWS, LABELS),
        defense,
        threat=ThreatModel(mechanism=mechanism),
        num_classes=2,
        layout=LAYOUT,
        generator=generator(2),
    )
    return score_table(QUICK(observation, generator()), ROWS, LAYOUT).summary()


def guess() -> float:
    rows, _ = table(300, seed=5)
    blind = LAYOUT.guess(rows).expand_as(ROWS)
    return score_table(blind, ROWS, LAYOUT).summary()["accuracy"]


def test_rows_are_found_without_a_defense():
    assert attacked(NoDefense(), "unknown")["accuracy"] > 0.9 > guess()


def test_much_noise_hides_them():
    clear = attacked(GradientNoise(1e-4))
    hidden = attacked(GradientNoise(10.0))
    assert clear["accuracy"] > 0.9
    assert hidden["accuracy"] < 0.75
