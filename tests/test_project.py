"""What surrounds the code tells the truth: citation, contributing guide, make, workflows, image."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.nn.functional import cross_entropy

import gradveil
from gradveil.attacks import observe
from gradveil.catalog import build_attack, build_defense

from .documents import run_python_blocks

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_the_citation_has_the_version_and_the_paper() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == gradveil.__version__
    paper = citation["preferred-citation"]
    assert paper["title"] == "Optimal Defenses Against Gradient Reconstruction Attacks"
    assert [author["family-names"] for author in paper["authors"]] == ["Chen", "Gürsoy", "Lei"]


def test_the_version_is_written_once() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert not re.search(r"^version = ", text, flags=re.MULTILINE)


def test_the_guide_to_defenses_and_attacks_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_python_blocks(CONTRIBUTING) == 2
    blocks = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(), flags=re.DOTALL)
    (tmp_path / "mine_of_a_guide.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(str(tmp_path))
    defense = build_defense("mine_of_a_guide:LayerNoise(factor=2.0)", allow_imports=True)
    attack = build_attack("mine_of_a_guide:Blind", allow_imports=True)

    model, batch = nn.Linear(4, 3), (torch.ones(2, 4), torch.tensor([0, 2]))
    message = gradveil.GradientMessage(model, cross_entropy, batch[1])
    std = defense.plan(gradveil.measure(message, batch[0])).std["weight"]
    root_mean_square = message(batch[0])["weight"].square().mean().sqrt()
    torch.testing.assert_close(std, 2 * root_mean_square.expand_as(std))
    assert not defense.about.private
    found = attack(observe(model, cross_entropy, batch, defense, num_classes=3))
    assert found.inputs.shape == (2, 4)


def test_the_guide_names_targets_of_make() -> None:
    named = set(re.findall(r"^make ([a-z]+)", CONTRIBUTING.read_text(), flags=re.MULTILINE))
    assert named - {"docs"} <= make_targets()


def test_make_explains_every_target() -> None:
    done = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, check=True)
    assert make_targets() <= {line.split()[0] for line in done.stdout.splitlines() if line}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_their_actions_and_ask_for_little(path: Path) -> None:
    workflow = read_yaml(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for job in workflow["jobs"].values():
        assert set(job.get("permissions", {})) <= {"contents", "id-token"}
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", f"a@{0:040}"))
            for target in re.findall(r"make ([a-z]+)", step.get("run", "")):
                assert target in {*make_targets(), "docs"}


def test_workflows_test_the_versions_of_python_that_are_promised() -> None:
    versions = read_yaml(ROOT / ".github/workflows/tests.yml")["jobs"]["test"]["strategy"]
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert versions["matrix"]["python"] == promised


def test_the_image_gets_what_the_wheel_is_built_from() -> None:
    kept = (ROOT / ".dockerignore").read_text().split("\n!")[1:]
    for line in re.findall(
        r"^COPY (?!--)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    ):
        for name in line.split():
            assert name in {entry.splitlines()[0] for entry in kept}
            assert (ROOT / name).exists()


def test_hooks_run_programs_of_the_environment() -> None:
    config = read_yaml(ROOT / ".pre-commit-config.yaml")
    entries = {hook["entry"].split()[0] for repo in config["repos"] for hook in repo["hooks"]}
    assert entries == {".venv/bin/ruff", ".venv/bin/mypy"}
    assert all((Path(sys.executable).parent / Path(entry).name).exists() for entry in entries)
