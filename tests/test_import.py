"""`import gradveil` loads the core, which needs torch and numpy; all else is loaded when used."""

import subprocess
import sys

import pytest

import gradveil

from .hiding import OPTIONAL, run_without

CORE = {"defenses", "mechanisms", "messages", "sensitivity", "shapes", "theory"}
LAZY = ("Observation", "load_dataset", "score")
PACKAGES = ("attacks", "audit", "catalog", "data", "models", "privacy", "scoring")

NEWLY_LOADED = """
import sys, torch, numpy
before = set(sys.modules)
import gradveil
print(*sys.modules.keys() - before)
"""

DEFENDED_TRAINING = """
import torch
from torch import nn

import gradveil
from gradveil.shapes import ModelSource

model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(0)
inputs = torch.rand(8, 6, generator=generator)
targets = torch.arange(8) % 3
for defense in (
    gradveil.OptimalNoise(scale=0.01),
    gradveil.OptimalNoise(scale=0.01, source=ModelSource(2)),
):
    for _ in range(4):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        defense.backward(model, nn.functional.cross_entropy, inputs, targets, generator=generator)
        optimizer.step()
        assert all((p != old).any() for p, old in zip(model.parameters(), before))
print("trained")
"""


@pytest.fixture(scope="module")
def newly_loaded() -> set[str]:
    """The modules that `import gradveil` adds to those of torch and numpy."""
    command = [sys.executable, "-c", NEWLY_LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_no_optional_package(newly_loaded):
    assert {name.partition(".")[0] for name in newly_loaded} & set(OPTIONAL) == set()


def test_import_loads_the_core_only(newly_loaded):
    parts = {name.split(".")[1] for name in newly_loaded if name.startswith("gradveil.")}
    assert {part for part in parts if not part.startswith("_")} == CORE


def test_defended_training_needs_torch_and_numpy_only():
    done = run_without(OPTIONAL, DEFENDED_TRAINING)
    assert (done.stdout, done.stderr, done.returncode) == ("trained\n", "", 0)


def test_hidden_packages_are_not_found():
    done = run_without(("scipy",), "import scipy.stats")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'scipy'"


def test_lazy_names_are_listed_and_load_when_used():
    names = [*LAZY, *PACKAGES]
    code = (
        "import gradveil; print(*dir(gradveil));"
        f"print(*[type(getattr(gradveil, name)).__name__ for name in {names}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed, kinds = (line.split() for line in done.stdout.splitlines())
    assert {*names, *gradveil.__all__} <= set(listed)
    assert kinds == ["type", *["function"] * 2, *["module"] * 7]


def test_lazy_names_are_those_of_their_packages():
    from gradveil.scoring import score

    assert gradveil.score is score
    assert set(LAZY) <= set(gradveil.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gradveil' has no attribute 'nonsense'"):
        gradveil.nonsense  # noqa: B018
