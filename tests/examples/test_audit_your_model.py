"""The example audit of a user's own model and data, from the command line and from Python."""

from pathlib import Path

import pytest

from .conftest import Example, Run, commands_of


@pytest.mark.slow
def test_every_command_of_the_readme(example: Example, run: Run) -> None:
    folder = example("audit_your_model")
    commands = commands_of(folder / "README.md")
    assert len(commands) == 3
    for command in commands:
        printed = run(folder, command)
    assert printed.startswith("Report: ")
    for report in ("report", "report-from-python"):
        assert "my" in Path(folder / report / "report.html").read_text()
