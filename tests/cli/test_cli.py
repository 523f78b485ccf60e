"""The command line as a user runs it."""

import subprocess
import sys

from typer.testing import CliRunner

from gradveil.cli import app


def test_help_lists_the_commands():
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    for command in ("audit", "bound", "list", "train"):
        assert command in done.stdout


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path):
    code = "from gradveil.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", "--strengths", "-1", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("gradveil: ")]
    assert len(lines) == 1
    assert "Option `--strengths`" in lines[0]
    assert "`--strengths = -1`" in lines[0]
