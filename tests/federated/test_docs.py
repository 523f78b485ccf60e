"""The documentation's Python blocks run, and its command lines are understood."""

from pathlib import Path

import pytest

from tests.documents import parse_commands, run_python_blocks

PAGE = Path(__file__).parents[2] / "docs" / "federated.md"


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_python_blocks(PAGE) == 2
    assert "accuracy" in capsys.readouterr().out


def test_commands_parse() -> None:
    assert parse_commands(PAGE) == 4
