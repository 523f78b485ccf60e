"""Where Flower is missing, as on Python 3.10, its modules and their tests are left out.

`seen` in the examples of attacks is the one that `gradveil.attacks.Observation` shows.

Each process of the tests has one thread: several that share the processors wait for each other.
"""

import os
from importlib.util import find_spec
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

HAS_FLOWER = find_spec("flwr") is not None

collect_ignore = [] if HAS_FLOWER else ["src/gradveil/flower", "tests/flower"]


def pytest_report_header() -> str | None:
    """Say what is left out."""
    return None if HAS_FLOWER else "Flower is not installed: gradveil.flower is not tested."


@pytest.fixture(scope="session", autouse=True)
def _seen(doctest_namespace: dict[str, Any]) -> None:
    import torch

    from gradveil import NoDefense
    from gradveil.attacks import observe
    from gradveil.models import build_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model("mlp", sizes=[3, 8, 2])
    private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    loss = torch.nn.functional.cross_entropy
    doctest_namespace["seen"] = observe(model, loss, private, NoDefense(), num_classes=2)
