"""What a page of the documentation shows: its Python blocks are run, its commands understood."""

import re
import shlex
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.main

from gradveil.cli import app

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?:<!-- needs: (.+?) -->\n)?```python\n(.*?)```", flags=re.DOTALL)
"""A Python block, and the packages that are not ours which a comment above it asks for."""


def python_blocks(page: Path) -> list[tuple[list[str], str]]:
    """The packages that each block needs, and its text."""
    found = BLOCK.findall(page.read_text())
    return [([*needs.split(), *["flwr"] * ("flwr" in text)], text) for needs, text in found]


def pages() -> list[Path]:
    """All pages that were written by hand: README and docs/."""
    docs = ROOT / "docs"
    written = (
        page for page in docs.rglob("*.md") if page.relative_to(docs).parts[0][0] not in "_g"
    )
    return [ROOT / "README.md", *sorted(written)]


def run_python_blocks(page: Path, name: str = "document") -> int:
    """Run all Python blocks as one program, as a reader would; returns how many there are.

    Blocks for packages that are not installed are left out, and the test counts as skipped.
    """
    needed = {package for needs, _ in python_blocks(page) for package in needs}
    missing = {package for package in needed if find_spec(package) is None}
    with warnings.catch_warnings():
        if needed - {"flwr"}:
            warnings.simplefilter("ignore")  # other people's
        exec(compile(_program(page, missing), str(page), "exec"), {"__name__": name})
    if missing:
        pytest.skip(f"{page.name}: all ran but what needs {', '.join(sorted(missing))}")
    return len(python_blocks(page))


def _program(page: Path, missing: set[str]) -> str:
    """The blocks in the lines that they have in the page, so that tracebacks are right."""
    text, program, line = page.read_text(), "", 0
    for block, (needs, _) in zip(BLOCK.finditer(text), python_blocks(page), strict=True):
        if missing.isdisjoint(needs):
            start = text.count("\n", 0, block.start(2))
            program += "\n" * (start - line) + block[2]
            line = start + block[2].count("\n")
    return program


def commands_of(page: Path) -> list[str]:
    """Every line of the page that is a command of ours, with what goes on after a backslash."""
    blocks = re.findall(r"```(?:sh)?\n(.*?)```", page.read_text(), flags=re.DOTALL)
    lines = re.sub(r"\\\n\s*", "", "\n".join(blocks)).splitlines()
    return [line for line in lines if line.startswith("gradveil ")]


def parse_commands(page: Path) -> int:
    """Parse every command of ours without running it; how many there are."""
    lines = commands_of(page)
    for line in lines:
        command = typer.main.get_command(app)
        arguments = shlex.split(line, comments=True)[1:]
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("gradveil", arguments)
    return len(lines)
