"""The command line as a user runs it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import gradveil
from gradveil._checks import WrongValue
from gradveil.cli import app, report_error
from gradveil.cli._options import option


def test_help_lists_the_commands():
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    for command in ("audit", "bound", "list", "train"):
        assert command in done.stdout


def test_python_m_gradveil_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "gradveil", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"gradveil {gradveil.__version__}\n"


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


@pytest.mark.parametrize(
    ("words", "is_json"),
    [
        (["--format", "json"], True),
        (["--format=json"], True),
        (["--format", "table", "--data", "json"], False),
        ([], False),
    ],
)
def test_json_names_the_argument(words, is_json, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gradveil", "audit", *words])
    report_error(WrongValue("--seed", "be a number", "'x'"))
    told = capsys.readouterr()
    assert told.err == "gradveil: Option `--seed` should be a number. Found 'x'.\n"
    assert bool(told.out) == is_json
    if is_json:
        assert json.loads(told.out)["argument"] == "--seed"


def test_an_option_says_which_of_its_parts_is_wrong():
    with pytest.raises(WrongValue) as stopped, option("--defense", "source"):
        raise WrongValue("lr", "be above 0", "-1", assigned=True)
    assert str(stopped.value) == (
        "Option `--defense`: Parameter `lr` should be above 0. Found `lr = -1`."
    )
