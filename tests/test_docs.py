"""Every test and every file that the documentation names exists."""

import re
from pathlib import Path

from tests.documents import run_python_blocks

ROOT = Path(__file__).parents[1]
THEORY = (ROOT / "docs" / "theory.md").read_text()


def test_named_tests_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", THEORY)
    assert len(named) >= 12
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} should define {name}"


def test_named_sources_exist():
    named = re.findall(
        r"`((?:messages|sensitivity|mechanisms|defenses|theory)/(?:_\w+/)?_\w+\.py)`", THEORY
    )
    assert len(named) >= 12
    for path in named:
        assert (ROOT / "src" / "gradveil" / path).exists(), f"{path} should exist"


def test_blocks_on_plans_run(capsys):
    assert run_python_blocks(ROOT / "docs" / "plans.md") >= 2
    private, model, public = capsys.readouterr().out.splitlines()
    assert private.startswith("private 1 [")
    assert model.startswith("model ")
    assert public.startswith("False ")
