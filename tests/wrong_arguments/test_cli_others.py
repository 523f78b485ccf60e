"""`gradveil list`, the options of all commands, and what help and errors show."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

import gradveil
from gradveil.cli import app
from tests.wrong_arguments import command_line
from tests.wrong_arguments.conftest import Refuses

OTHERS = [
    ("list --format xml", "--format", "xml"),
    ("list everything", "everything", "unexpected extra argument"),
    ("audits", "audits", "No such command"),
    ("--verbose", "--verbose", "No such option"),
]


@pytest.mark.parametrize(("typed", "option", "found"), OTHERS)
def test_others(typed: str, option: str, found: str, refuses: Refuses) -> None:
    refuses(typed.split(" "), option, found)


def test_the_error_of_a_command_as_json(
    workplace: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("bound", "--data", "missing.npz", "--format", "json")
    done = command_line.run(*words, capsys=capsys, monkeypatch=monkeypatch)
    assert "Option `--data`" in command_line.error_of(done)
    assert json.loads(done.out)["kind"] == "FileNotFoundError"


def test_the_version(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = command_line.run("--version", capsys=capsys, monkeypatch=monkeypatch)
    assert (done.code, done.out.strip()) == (0, f"gradveil {gradveil.__version__}")


def commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    if not hasattr(group, "commands"):
        return [(path, group)]
    return [one for name, sub in group.commands.items() for one in commands(sub, (*path, name))]


@pytest.mark.parametrize(
    ("path", "command"), commands(typer.main.get_command(app)), ids=lambda x: str(x)[:30]
)
def test_help_shows_all_of_its_text(path: tuple[str, ...], command: click.Command) -> None:
    """Square brackets are markup to rich: what stands in them would be lost."""
    done = CliRunner(env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).invoke(app, [*path, "--help"])
    shown = re.sub(r"[│\s]+", " ", done.stdout)
    for parameter in command.params:
        text = getattr(parameter, "help", None) or ""
        assert re.sub(r"\s+", " ", text) in shown, (parameter.name, text)
        assert "[" not in text
        default = getattr(parameter, "show_default", None)
        if isinstance(default, str):
            assert default in shown, (parameter.name, default)


def test_names_in_brackets_are_shown_as_they_are(
    workplace: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("bound", "--data", "one[bold]name.npz", "--batch-size", "2")
    done = command_line.run(*words, capsys=capsys, monkeypatch=monkeypatch)
    assert done.code == 0, done.err
    assert "one[bold]name" in done.out
