"""What a page of the documentation shows: its Python blocks are run, its commands understood."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from gradveil.cli import app


def run_python_blocks(page: Path, name: str = "document") -> int:
    """Run all Python blocks as one program, as a reader would; returns how many there are."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    if any("flwr" in block for block in blocks):
        pytest.importorskip("flwr", reason="Flower needs Python 3.11")
    exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": name})
    return len(blocks)


def parse_commands(page: Path) -> int:
    """Parse every line that is a command of ours without running it; how many there are."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("gradveil ")]
    for line in lines:
        command = typer.main.get_command(app)
        arguments = shlex.split(line)[1:]
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("gradveil", arguments)
    return len(lines)
