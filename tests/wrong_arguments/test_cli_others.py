"""`gradveil reproduce`, `bench` and `list`, the options of all, and what help and errors show."""

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
from gradveil.studies.reproduce import STUDIES
from gradveil.studies.runner import Store
from tests.studies import fake
from tests.wrong_arguments import command_line
from tests.wrong_arguments.conftest import Refuses

STUDY = f"{fake.__name__}:STUDY"

REPRODUCE = [
    ("--out run", "`STUDIES`", "Found none"),
    ("mnist-prunning", "`STUDIES`", "mnist-prunning"),
    ("absent_module:STUDY", "`STUDIES`", "absent_module"),
    ("own:absent", "`STUDIES`", "no attribute 'absent'"),
    ("own:raises", "`STUDIES`", "function"),
    ("broken_syntax:STUDY", "`STUDIES`", "SyntaxError"),
    ("broken_import:STUDY", "`STUDIES`", "ZeroDivisionError"),
    ("broken_exit:STUDY", "`STUDIES`", "SystemExit: 4"),
    (f"{STUDY} --preset slow", "--preset", "slow"),
    (f"{STUDY} --engine mars", "--engine", "mars"),
    (f"{STUDY} --jobs 0", "Option `--jobs`", "0"),
    (f"{STUDY} --jobs -1", "Option `--jobs`", "-1"),
    (f"{STUDY} --jobs many", "--jobs", "many"),
    (f"{STUDY} --engine ray --jobs 0", "Option `--jobs`", "0"),
    (f"{STUDY} --address auto", "Option `--address`", "'auto'"),
    (f"{STUDY} --data missing", "Option `--data`", "missing"),
    (f"{STUDY} --data=", "Option `--data`", "''"),
    (f"{STUDY} --out loop", "Option `--out`", "loop"),
    (f"{STUDY} --data notes.txt", "Option `--data`", "notes.txt"),
    ("mnist-pruning --preset paper", "--data FOLDER", "Found none"),
    ("mnist-pruning --preset paper --data folder", "folder", "nothing"),
    (f"{STUDY} --out notes.txt", "Option `--out`", "notes.txt"),
    (f"{STUDY} --out notes.txt/deeper", "Option `--out`", "is a file"),
    (f"{STUDY} --only-figures", "--only-figures", "Found none"),
    (f"{STUDY} --status --only-figures", "Option `--only-figures`", "--only-figures"),
    (f"{STUDY} --status --retry-failed", "Option `--retry-failed`", "--retry-failed"),
    (f"{STUDY} --only-figures --retry-failed", "Option `--retry-failed`", "--retry-failed"),
    (f"{STUDY} --known missing", "Option `--known`", "missing"),
    (f"{STUDY} --known notes.txt", "Option `--known`", "columns"),
    (f"{STUDY} --known folder", "Option `--known`", "folder"),
    (f"{STUDY} --status --known notes.txt", "Option `--known`", "notes.txt"),
    (f"{STUDY} --format xml", "--format", "xml"),
]

BENCH = [
    ("sensitivity --repeats 0", "Option `--repeats`", "0"),
    ("sensitivity --draws -1", "Option `--draws`", "-1"),
    ("sensitivity --reference-probes 0", "Option `--reference-probes`", "0"),
    ("sensitivity --quick --repeats 0", "Option `--repeats`", "0"),
    ("sensitivity --quick --large", "Option `--large`", "--large"),
    ("sensitivity --mnist missing.npz", "Option `--mnist`", "missing.npz"),
    ("sensitivity --mnist folder --quick", "Option `--mnist`", "nothing"),
    ("sensitivity --cifar mnits", "Option `--cifar`", "mnits"),
    ("sensitivity --out notes.txt", "Option `--out`", "notes.txt"),
    ("cached --steps 0", "Option `--steps`", "0"),
    ("cached --batch 0", "Option `--batch`", "0"),
    ("cached --batch 9999", "Option `--batch`", "9999"),
    ("cached --refresh-every 0", "Option `--refresh-every`", "0"),
    ("cached --grade-every -2", "Option `--grade-every`", "-2"),
    ("cached --mnist cifar10", "Option `--mnist`", "(3, 32, 32)"),
    ("cached --mnist table.npz", "Option `--mnist`", "(5,)"),
    ("federated --clients 0", "Option `--clients`", "0"),
    ("federated --batch -1", "Option `--batch`", "-1"),
    ("federated --refresh-every 0", "Option `--refresh-every`", "0"),
    ("federated --repeats 0", "Option `--repeats`", "0"),
    ("federated --trained -1", "Option `--trained`", "-1"),
    ("federated --mnist missing.npz", "Option `--mnist`", "missing.npz"),
    ("federated --out notes.txt", "Option `--out`", "notes.txt"),
    ("attack --budget 0", "Option `--budget`", "0.0"),
    ("attack --budget nan", "Option `--budget`", "nan"),
    ("attack --quick --budget -1", "Option `--budget`", "-1.0"),
    ("attack --batches 0", "Option `--batches`", "0"),
    ("attack --batches 9999", "Option `--batches`", "999804"),
    ("attack --images 99999", "Option `--images`", "99999"),
    ("attack --images 0", "Option `--images`", "0"),
    ("attack --mnist table.npz", "Option `--mnist`", "(5,)"),
    ("attack --out notes.txt/deeper", "Option `--out`", "is a file"),
    ("attack --format xml", "--format", "xml"),
    ("speed", "speed", "No such command"),
]

OTHERS = [
    ("list --format xml", "--format", "xml"),
    ("list everything", "everything", "unexpected extra argument"),
    ("audits", "audits", "No such command"),
    ("--verbose", "--verbose", "No such option"),
]


@pytest.mark.parametrize(("typed", "option", "found"), REPRODUCE)
def test_reproduce(typed: str, option: str, found: str, refuses: Refuses) -> None:
    jobs = [] if "--jobs" in typed else ["--jobs", "1"]
    refuses(["reproduce", *typed.split(" "), *jobs], option, found)


@pytest.mark.parametrize(("typed", "option", "found"), BENCH)
def test_bench(typed: str, option: str, found: str, refuses: Refuses) -> None:
    refuses(["bench", *typed.split(" ")], option, found)


@pytest.mark.parametrize(("typed", "option", "found"), OTHERS)
def test_others(typed: str, option: str, found: str, refuses: Refuses) -> None:
    refuses(typed.split(" "), option, found)


@pytest.mark.parametrize(
    "name", ["mnist-pruning"] if "mnist-pruning" in STUDIES else sorted(STUDIES)[:1]
)
def test_a_package_that_is_missing_is_named_before_any_cell_runs(
    name: str, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradveil.studies.cells import _parts

    _parts.dataset.cache_clear()
    monkeypatch.setattr("gradveil._extras._is_installed", lambda module: module != "mlxtend")
    refuses(["reproduce", name, "--jobs", "1"], "mlxtend", 'pip install "gradveil[data]"')
    _parts.dataset.cache_clear()


def test_cells_that_lacked_a_package_are_run_again(
    workplace: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `--retry-failed`: the package may be there now."""

    def run() -> command_line.Done:
        words = ("reproduce", STUDY, "--jobs", "1", "--out", "r")
        return command_line.run(*words, capsys=capsys, monkeypatch=monkeypatch)

    def lacking(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'mlxtend'")

    with monkeypatch.context() as broken:
        broken.setattr("gradveil.studies.runner._engine.function_of", lambda kind: lacking)
        assert run().code == 1
    store = Store(workplace / "r" / "store")
    states = {p.state for p in store.progress(fake.STUDY.cells("quick")).values()}
    store.close()
    assert states == {"failed"}
    done = run()
    assert done.code == 0, done.err
    assert "lacked a package or data before: 12." in done.text


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
