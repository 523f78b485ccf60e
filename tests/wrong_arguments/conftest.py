"""A folder that stays as it is: empty for the library, with small files for the command line."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wrong_arguments import command_line

Refuses = Callable[..., None]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, global_rng_watch: None) -> Path:
    """The working folder of a wrong call."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def workplace_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files, made once."""
    folder = tmp_path_factory.mktemp("workplace")
    command_line.make_workplace(folder)
    return folder


@pytest.fixture
def workplace(workplace_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files as the working folder, for commands that write."""
    folder = tmp_path / "work"
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(workplace_files, folder, ignore=left_out, symlinks=True)
    _enter(folder, monkeypatch)
    return folder


@pytest.fixture
def refuses(
    workplace_files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refuses:
    """Runs a wrong command among the files, and requires its error and that nothing was written."""
    _enter(workplace_files, monkeypatch)

    def check(arguments: list[str], option: str, found: str) -> None:
        before = command_line.files(workplace_files)
        done = command_line.run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
        command_line.assert_refused(done, option, found)
        assert command_line.files(workplace_files) == before

    return check


def _enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder, and import its modules anew."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("GRADVEIL_DATA", raising=False)
    for name in ("own", "broken_syntax", "broken_import", "broken_exit"):
        monkeypatch.delitem(sys.modules, name, raising=False)
