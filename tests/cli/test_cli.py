"""The command line as a user runs it."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from gradveil.cli import app


def test_audit_as_json_shows_guarantees_at_equal_utility():
    done = CliRunner().invoke(app, ["audit", "--batch-size", "1", "--format", "json"])
    assert done.exit_code == 0, done.output
    rows = {row["defense"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["no defense"]["bound_per_pixel"] == 0
    for twin in ("noise", "pruning + noise"):
        classical, optimal = rows[twin], rows[f"optimal {twin}"]
        assert abs(optimal["utility_first"] / classical["utility_first"] - 1) < 1e-3
        assert optimal["bound_per_pixel"] > 0
    assert rows["optimal noise"]["bound_per_pixel"] > rows["noise"]["bound_per_pixel"]


def test_help_lists_the_commands():
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    assert "audit" in done.stdout
    assert "bench" in done.stdout


def test_a_mistake_is_one_line_and_exit_code_2():
    code = "from gradveil.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", "--scale", "-1"], capture_output=True, text=True
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("gradveil: ")]
    assert len(lines) == 1
    assert "`scale = -1.0`" in lines[0]
