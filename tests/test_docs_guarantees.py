"""docs/guarantees.md: its Python runs, its commands are understood."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from gradveil.cli import app

TEXT = (Path(__file__).parents[1] / "docs" / "guarantees.md").read_text()


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "guarantees.md", "exec"), {})
    shown = capsys.readouterr().out
    assert "after 3 rounds, for each example (one example more or less)" in shown
    assert "0.341" in shown  # the recognition bound, as Monte Carlo has it


def test_commands_parse() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("gradveil ")]
    assert len(lines) == 7
    for line in lines:
        command = typer.main.get_command(app)
        arguments = shlex.split(line)[1:]
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("gradveil", arguments)
