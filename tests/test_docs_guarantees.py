"""docs/guarantees.md: its Python runs, its commands are understood."""

from pathlib import Path

import pytest

from tests.documents import parse_commands, run_python_blocks

PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_python_blocks(PAGE) == 2
    shown = capsys.readouterr().out
    assert "after 3 rounds, for each example (one example more or less)" in shown
    assert "0.341" in shown  # the recognition bound, as Monte Carlo has it


def test_commands_parse() -> None:
    assert parse_commands(PAGE) == 7
