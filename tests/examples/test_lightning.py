"""The example of a defended step in Lightning."""

import re

import pytest

from .conftest import Example, Run


def test_it_trains(example: Example, run: Run) -> None:
    reason = "Lightning is not installed; see examples/lightning/requirements.txt"
    pytest.importorskip("lightning", reason=reason)
    printed = run(example("lightning"), "python main.py --steps 40")
    found = re.search(r"after 40 steps: loss ([\d.]+), accuracy ([\d.]+)", printed)
    assert found is not None
    assert float(found[1]) < 2.0  # 2.3 is chance
