"""Where Flower is missing, as on Python 3.10, its modules and their tests are left out.

`seen` in the examples of attacks is the one that `gradveil.attacks.Observation` shows,
`seen_text` that of the tokens 3, 1, 4 in a small transformer.

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

    from gradveil import GradientNoise, NoDefense
    from gradveil.attacks import ThreatModel, observe
    from gradveil.models import TokenTransformer, build_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model("mlp", sizes=[3, 8, 2])
        reader = TokenTransformer(tokens=12, length=4, width=16, depth=1).eval()
    loss, label, none = torch.nn.functional.cross_entropy, torch.tensor([1]), NoDefense()
    private, text = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([[3, 1, 4]])
    names = (GradientNoise, NoDefense, ThreatModel, build_model, loss, observe)
    doctest_namespace.update({each.__name__: each for each in names})
    doctest_namespace["seen"] = observe(model, loss, (private, label), none, num_classes=2)
    doctest_namespace["seen_text"] = observe(reader, loss, (text, label), none, num_classes=2)
