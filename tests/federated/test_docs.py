"""The documentation's Python blocks run, and its command lines are understood."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from gradveil.cli import app

TEXT = (Path(__file__).parents[2] / "docs" / "federated.md").read_text()


def test_python_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "federated.md", "exec"), {})
    assert "accuracy" in capsys.readouterr().out


def test_commands_parse() -> None:
    lines = [line for line in TEXT.splitlines() if line.startswith("gradveil ")]
    assert len(lines) == 4
    for line in lines:
        command = typer.main.get_command(app)
        arguments = shlex.split(line)[1:]
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("gradveil", arguments)
