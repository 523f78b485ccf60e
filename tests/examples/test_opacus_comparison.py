"""The example that trains with Opacus and with PrivateNoise."""

import re

import pytest

from .conftest import Example, Run


@pytest.mark.slow
def test_both_learn_and_spend_the_same(example: Example, run: Run) -> None:
    printed = run(example("opacus_comparison"), "python main.py --epochs 1")
    rows = re.findall(
        r"^(Opacus|PrivateNoise) +([\d.]+) +([\d.]+) +([\d.]+) +[\d.]+$", printed, re.M
    )
    assert [name for name, *_ in rows] == ["Opacus", "PrivateNoise"]
    (*opacus, opacus_epsilon), (*ours, epsilon) = ([float(x) for x in row[1:]] for row in rows)
    assert epsilon == pytest.approx(opacus_epsilon, abs=0.02)  # what Opacus' accountant aims at
    for loss, accuracy in (opacus, ours):
        assert loss < 2.0  # 2.3 is chance
        assert accuracy > 0.3
