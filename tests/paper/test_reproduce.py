"""`python -m paper` as a user runs it; that a killed run goes on is tested with the runner."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradveil._runner import Found
from paper import reproduce as module
from paper.claims import CLAIMS, find
from paper.reproduce import (
    STUDIES,
    app,
    draw_overview,
    missing_cells,
    select_studies,
)
from paper.study import Table, cell_of, read_cells, write_cells
from tests.paper.synthetic import synthetic_results, synthetic_store

STUDY, SHARED, IMAGES = "mnist-layer-table", "cifar-pruning-tradeoff", "cifar-pruning-images"


@pytest.fixture
def reproduce(tmp_path):
    """Run the command in this process, into a folder of the test."""

    def run(*arguments, code=0):
        options = ["--jobs", "1", "--out", str(tmp_path / "out"), *arguments]
        done = CliRunner().invoke(app, options)
        assert done.exit_code == code, (done.output, done.exception)
        return done

    return run


def test_a_study_ends_as_numbers_figures_claims_and_a_commit(reproduce, tmp_path):
    assert f"{STUDY}: 1 of 1 cells" in reproduce(STUDY).stdout
    folder = tmp_path / "out" / "quick"
    assert "all,119530" in (folder / f"{STUDY}.csv").read_text()
    assert (folder / f"{STUDY}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / f"{STUDY}.pdf").read_bytes().startswith(b"%PDF")
    names = {path.name for path in folder.iterdir()}
    assert names >= {"claims.md", "claims.json", "cells.csv", "commit.txt", "summary.png"}
    assert len((folder / "commit.txt").read_text().split()) == 1


@pytest.mark.slow
def test_what_is_done_or_known_is_not_run_again(reproduce, tmp_path):
    reproduce(STUDY)
    kept, other = tmp_path / "out" / "quick", tmp_path / "other"
    assert missing_cells([STUDIES[STUDY]], "quick", tmp_path / "out" / "cells", {}) == []
    known = read_cells(kept / "cells.csv")
    assert missing_cells([STUDIES[STUDY]], "quick", tmp_path / "none", known) == []
    reproduce(STUDY, "--only-figures", "--known", str(kept / "cells.csv"), "--out", str(other))
    for name in ("cells.csv", "commit.txt", f"{STUDY}.csv", "claims.json"):
        assert (other / "quick" / name).read_bytes() == (kept / name).read_bytes()


@pytest.mark.parametrize(("names", "lacking"), [([SHARED], 0), ([SHARED, IMAGES], 4)])
def test_only_cells_whose_images_are_to_be_shown_run_again(tmp_path, names, lacking):
    cells = STUDIES[SHARED].cells("quick")
    known = {cell: Found({"mse": [1.0]}, 0.1) for cell in cells}
    missing = missing_cells([STUDIES[name] for name in names], "quick", tmp_path, known)
    assert len(missing) == lacking


def test_a_figure_of_images_without_images_is_empty():
    cells = STUDIES[IMAGES].cells("quick")
    results = {cell: {"mse": [1.0], "psnr": [1.0], "assignment": [0]} for cell in cells}
    assert STUDIES[IMAGES].numbers(results).rows == []


def test_a_cell_that_fails_is_told_and_tried_again(reproduce, monkeypatch):
    def broken(settings):
        raise ArithmeticError("no sizes today")

    cell = module.Cell(broken, {"data": "mnist"})
    monkeypatch.setitem(STUDIES, STUDY, replace(STUDIES[STUDY], cells=lambda preset: [cell]))
    for _ in range(2):
        done = reproduce(STUDY, code=1)
        assert f"{STUDY}: 0 of 1 cells" in done.stdout
        assert "failed: broken" in done.stderr
        assert "no sizes today" in done.stderr


def test_the_data_folder_reaches_the_cells(reproduce, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADVEIL_DATA", "")
    reproduce(STUDY, "--data", str(tmp_path))
    assert os.environ["GRADVEIL_DATA"] == str(tmp_path.resolve())


@pytest.mark.parametrize("words", [("mnist-pruning", "paper"), ("cifar-frontier", "standard")])
def test_official_data_are_asked_for_or_their_cells_left_out(reproduce, monkeypatch, words):
    monkeypatch.delenv("GRADVEIL_DATA", raising=False)
    monkeypatch.setattr(module.Runner, "run", lambda *_, **__: pytest.fail("nothing should run"))
    name, preset = words
    official = [c for c in STUDIES[name].cells(preset) if c.settings["data"].endswith("-test")]
    monkeypatch.setitem(STUDIES, name, replace(STUDIES[name], cells=lambda preset: official[:5]))
    done = reproduce(name, "--preset", preset, code=1)
    assert isinstance(done.exception, FileNotFoundError)
    assert "--data FOLDER" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnist-prunning"], "mnist-pruning"),
        ([STUDY, "--known", __file__], "should have cells"),
    ],
)
def test_mistakes_say_what_to_do(reproduce, arguments, said):
    assert said in str(reproduce(*arguments, code=1).exception)


def test_studies_are_named_once_and_in_order():
    first, *others = select_studies([STUDY, "all"])
    assert first is STUDIES[STUDY]
    assert len(others) == len(STUDIES) - 1


def test_cells_come_back_from_their_file_without_images(tmp_path):
    cells = STUDIES[IMAGES].cells("quick")
    found = {cell: Found(values, 0.5) for cell, values in synthetic_results(cells).items()}
    write_cells(found, tmp_path / "cells.csv")
    read = read_cells(tmp_path / "cells.csv")
    assert read.keys() == found.keys()
    assert read[cells[0]].values["mse"] == found[cells[0]].values["mse"]
    assert "images" not in read[cells[0]].values
    write_cells(dict(reversed(read.items())), tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "cells.csv").read_bytes()


def test_cells_of_another_version_do_not_come_back(tmp_path, monkeypatch):
    cell = cell_of("layer_sizes", {"data": "mnist"})
    write_cells({cell: Found({"sizes": []}, 0.1)}, tmp_path / "cells.csv")
    monkeypatch.setattr(cell.function, "version", 2, raising=False)
    assert read_cells(tmp_path / "cells.csv") == {}


def test_a_table_as_text_has_all_digits():
    rows = [("a, b", 1, 0.1 + 0.2), (None, 2, float("inf"))]
    text = Table(("name", "count", "mse"), rows).as_csv()
    assert text == f'name,count,mse\n"a, b",1,{0.1 + 0.2!r}\n,2,inf\n'


def test_every_claim_is_in_the_summary_with_its_verdicts(monkeypatch, tmp_path):
    drawn: list[tuple[object, Path]] = []
    monkeypatch.setattr("paper.figures.save", lambda made, stem: drawn.append((made, stem)))
    store = synthetic_store("quick", effect=0.4)
    findings = find(store)
    draw_overview(findings, store, tmp_path)
    [(made, stem)] = drawn
    assert stem == tmp_path / "summary"
    grid, frontier = made.axes
    assert len(grid.get_yticklabels()) == len(CLAIMS)
    asked = [f for f in findings if f.setting and f.judgement.verdict != "-"]
    assert len(grid.texts) == len(asked)
    assert frontier.containers
