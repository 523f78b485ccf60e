"""`gradveil reproduce` as a user runs it, on a small study of the tests'."""

import csv
import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gradveil.cli import app
from gradveil.studies.reproduce import check_data
from gradveil.studies.reproduce._registry import STUDIES, select_studies
from gradveil.studies.runner import Done, Store, take_cells, write_cells
from gradveil.studies.shared import PHOTO_FRONTIER
from tests.studies import fake
from tests.studies.synthetic import synthetic_results

STUDY, MIXED = f"{fake.__name__}:STUDY", f"{fake.__name__}:MIXED_STUDY"


@pytest.fixture
def reproduce(tmp_path):
    """Run the command in one process, with its store under a folder of the test."""

    def run(*arguments, code=0):
        options = ["--jobs", "1", "--out", str(tmp_path / "out"), *arguments]
        done = CliRunner().invoke(app, ["reproduce", *options])
        assert done.exit_code == code, (done.output, done.exception)
        return done

    return run


def test_a_study_ends_as_numbers_figures_and_a_report(reproduce, tmp_path):
    done = json.loads(reproduce(STUDY, "--format", "json").stdout)
    folder = tmp_path / "out" / "quick"
    assert done["folder"] == str(folder)
    assert done["failures"] == []
    assert done["studies"][0]["done"] == done["studies"][0]["total"] == 12
    with (folder / "fake.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["seed"]) for row in rows] == list(range(12))
    saved = json.loads((folder / "fake.json").read_text())
    assert saved["columns"] == {"seed": "int", "mean": "float", "norm": "float"}
    assert [row["norm"] for row in saved["rows"]] == [float(row["norm"]) for row in rows]
    assert (folder / "fake.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "fake.pdf").read_bytes().startswith(b"%PDF")
    report = (folder / "report.md").read_text()
    assert "![A fake study](fake.png)" in report
    assert "12 of 12 cells" in report


def test_status_before_between_and_after(reproduce, tmp_path):
    before = json.loads(reproduce(STUDY, "--status", "--format", "json").stdout)["total"]
    assert (before["total"], before["remaining"], before["seconds"]) == (12, 12, None)
    assert not (tmp_path / "out").exists()
    reproduce(STUDY)
    options = ("--preset", "standard", "--status")
    between = json.loads(reproduce(STUDY, *options, "--format", "json").stdout)["total"]
    assert (between["total"], between["done"], between["remaining"]) == (24, 12, 12)
    assert 0 < between["seconds"] < 60
    after = reproduce(STUDY, "--status").stdout
    assert "remaining" in after
    assert "time left" in after


def test_a_second_run_runs_nothing(reproduce, tmp_path, monkeypatch):
    monkeypatch.setenv(fake.LOG, str(tmp_path / "log"))
    reproduce(STUDY)
    reproduce(STUDY)
    assert len((tmp_path / "log").read_text().split()) == 12


def test_figures_are_drawn_again_from_the_store_alone(reproduce, tmp_path, monkeypatch):
    reproduce(STUDY)
    folder = tmp_path / "out" / "quick"
    before = (folder / "fake.csv").read_bytes()
    for path in folder.iterdir():
        path.unlink()
    monkeypatch.setattr(fake, "draw", None)
    reproduce(STUDY, "--only-figures")
    assert (folder / "fake.csv").read_bytes() == before
    assert (folder / "fake.png").exists()


def test_another_folder_goes_on_from_the_numbers(reproduce, tmp_path, monkeypatch):
    reproduce("mnist-layer-table")
    known = tmp_path / "out" / "quick" / "cells.csv"
    assert (known.parent / "sources.json").exists()
    monkeypatch.setattr("gradveil.studies.runner._engine.execute", None)  # nothing may run
    for number, mode in enumerate(([], ["--only-figures"])):
        other = tmp_path / f"other{number}"
        arguments = ("mnist-layer-table", *mode, "--known", str(known), "--out", str(other))
        assert f"Cells taken from {known}: 1." in reproduce(*arguments).stderr.replace("\n", "")
        for name in ("cells.csv", "sources.json", "mnist-layer-table.csv"):
            assert (other / "quick" / name).read_bytes() == (known.parent / name).read_bytes()


def test_a_damaged_file_is_noticed_and_its_cell_run_again(reproduce, tmp_path):
    reproduce(STUDY)
    table = tmp_path / "out" / "quick" / "fake.csv"
    before = table.read_bytes()
    next((tmp_path / "out" / "store" / "arrays").rglob("*.product.npy")).write_bytes(b"oops")
    only = json.loads(reproduce(STUDY, "--only-figures", "--format", "json", code=1).stdout)
    assert "DamagedArrayError" in only["studies"][0]["error"]
    assert "files of theirs are damaged: 1." in reproduce(STUDY).stderr
    assert table.read_bytes() == before


def test_failed_cells_are_shown_and_retried_on_request(reproduce, tmp_path, monkeypatch):
    monkeypatch.setenv(fake.LOG, str(tmp_path / "log"))
    done = reproduce(MIXED, code=1)
    assert "mixed: 4 of 5 cells" in done.stdout
    assert "ArithmeticError: the file is there" in done.stderr
    assert "--retry-failed" in done.stderr
    status = json.loads(reproduce(MIXED, "--status", "--format", "json").stdout)
    assert status["total"]["failed"] == 1
    assert "in fail" in status["failures"][0]["error"]
    reproduce(MIXED, code=1)
    assert (tmp_path / "log").read_text().count("None") == 1
    reproduce(MIXED, "--retry-failed", code=1)
    assert (tmp_path / "log").read_text().count("None") == 2


def test_the_data_folder_reaches_the_cells(reproduce, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADVEIL_DATA", "")
    reproduce(STUDY, "--status", "--data", str(tmp_path))
    assert os.environ["GRADVEIL_DATA"] == str(tmp_path.resolve())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Found none. Name some."),
        ([STUDY, "--only-figures"], "should hold a store to draw from"),
        ([STUDY, "--address", "auto"], "Add `--engine ray`"),
        ([STUDY, "--jobs", "0"], "`--jobs` should be an integer of at least 1"),
        ([STUDY, "--data", "nowhere"], "`--data` should be a folder"),
        ([STUDY, "--known", "nowhere"], "`--known`"),
        ([STUDY, "--known", __file__], "should have the columns"),
        (["tests.studies.fake:draw"], "should be a study"),
    ],
)
def test_mistakes_say_what_to_do(reproduce, arguments, message):
    done = reproduce(*arguments, code=1)
    assert message in str(done.exception)


def test_a_foreign_file_in_place_of_the_store_is_refused(reproduce, tmp_path):
    (tmp_path / "out" / "store").mkdir(parents=True)
    (tmp_path / "out" / "store" / "cells.sqlite").write_text("no database " * 100)
    for mode in ([], ["--status"], ["--only-figures"]):
        done = reproduce(STUDY, *mode, code=1)
        assert "should be the database of a store" in str(done.exception)


def test_unknown_names_suggest_the_nearest(monkeypatch):
    monkeypatch.setitem(STUDIES, "mnist-pruning", fake.STUDY)
    with pytest.raises(ValueError, match="Did you mean `mnist-pruning`"):
        select_studies(["mnist-prunning"])
    assert select_studies(["mnist-pruning", "all"])[0] is fake.STUDY


def test_the_command_line_loads_studies_only_when_asked():
    code = "import sys, gradveil.cli; print([m for m in sys.modules if 'gradveil.studies' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [("mnist-pruning", "paper"), ("cifar-frontier", "standard")])
def test_official_data_are_asked_for_before_any_cell_runs(tmp_path, monkeypatch, words):
    monkeypatch.delenv("GRADVEIL_DATA", raising=False)
    name, preset = words
    arguments = ["reproduce", name, "--preset", preset, "--out", str(tmp_path / "r")]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, FileNotFoundError)
    assert "--data FOLDER" in str(done.exception)
    status = CliRunner().invoke(app, [*arguments, "--status", "--format", "json"])
    assert json.loads(status.stdout)["total"]["failed"] == 0


def test_all_studies_run_without_photos_that_few_of_them_need(monkeypatch):
    monkeypatch.delenv("GRADVEIL_DATA", raising=False)
    work = {"cifar-frontier": STUDIES["cifar-frontier"].cells("standard")}
    check_data(work, photos=False)
    with pytest.raises(FileNotFoundError, match="--data FOLDER"):
        check_data(work)


def test_data_of_known_cells_are_not_asked_for(tmp_path, monkeypatch):
    """All that would need the photos has been done elsewhere; without the file they are missed."""
    monkeypatch.delenv("GRADVEIL_DATA", raising=False)
    study = replace(STUDIES["cifar-frontier"], grids={"standard": FewPhotos()})
    monkeypatch.setitem(STUDIES, "cifar-frontier", study)
    cells, file = study.cells("standard"), tmp_path / "cells.csv"
    found = synthetic_results(cells)
    with closing(Store(tmp_path / "elsewhere")) as store:
        take_cells(store, cells, [Done(c, found[c].numbers, 1.0) for c in cells])
        write_cells(store, cells, file)
    arguments = ["reproduce", "cifar-frontier", "--preset", "standard", "--jobs", "1"]
    missed = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "a")])
    assert isinstance(missed.exception, FileNotFoundError)
    assert not (tmp_path / "a").exists()
    known = [*arguments, "--known", str(file), "--out", str(tmp_path / "b")]
    done = CliRunner().invoke(app, known)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "b" / "standard" / "cifar-frontier.csv").exists()


class FewPhotos:
    """The first contenders on the first photo."""

    def cells(self):
        return PHOTO_FRONTIER["standard"].cells()[:5]
