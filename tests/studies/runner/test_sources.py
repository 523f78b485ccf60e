"""The key of a cell holds the sources that it depends on."""

import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType

import pytest

import gradveil
from gradveil import defenses
from gradveil.catalog import EVERYTHING
from gradveil.studies.reproduce import STUDIES, write_all
from gradveil.studies.runner import Cell, Store, execute, function_of
from gradveil.studies.runner._arrays import array_path
from gradveil.studies.runner._cell import module_of
from gradveil.studies.runner._engine import work
from gradveil.studies.runner._named import names_in
from gradveil.studies.runner._owner import Owner
from gradveil.studies.runner._sources import (
    _hash,
    _imports,
    _origin,
    code_of,
    dependencies,
    sources_hash,
)
from gradveil.studies.runner._store import database_path
from tests.studies import fake

KIND = "sourcesofcells.kinds:find"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose function imports one of its modules, and not another."""
    folder = tmp_path / "sourcesofcells"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kinds.py").write_text(
        "def find(settings):\n    from . import helper\n    return {'found': helper.NUMBER}\n"
    )
    (folder / "helper.py").write_text("NUMBER = 1\n")
    (folder / "other.py").write_text("NUMBER = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("sourcesofcells")]:
        del sys.modules[name]


def new_process() -> None:
    for function in (sources_hash, _imports, _hash):
        function.cache_clear()


def key_now() -> str:
    new_process()
    return Cell(KIND, {"seed": 0}).key


def test_a_changed_source_changes_the_key_and_nothing_else_does(package: Path):
    before = key_now()
    assert key_now() == before
    (package / "other.py").write_text("NUMBER = 2\n")
    assert key_now() == before
    (package / "helper.py").write_text("NUMBER = 2\n")
    changed = key_now()
    assert changed != before
    (package / "kinds.py").write_text((package / "kinds.py").read_text() + "X = 1\n")
    assert key_now() not in (before, changed)


def test_the_identity_and_with_it_the_random_state_do_not_depend_on_sources(package: Path):
    before = Cell(KIND, {"seed": 0}).identity
    (package / "helper.py").write_text("NUMBER = 2\n")
    new_process()
    assert Cell(KIND, {"seed": 0}).identity == before


def test_the_identity_is_the_key_of_stores_without_sources():
    known = "dd30121180f8168d4e46c643e4114796de8e536aabf46501cda4d3e0bce84e20"
    assert Cell("attack", {"ratio": 0.9, "seed": 0}).identity == known


def test_sources_are_read_once_in_a_process(package: Path):
    before = key_now()
    (package / "helper.py").write_text("NUMBER = 2\n")
    assert Cell(KIND, {"seed": 0}).key == before


def test_a_process_with_other_sources_refuses_the_cell(package: Path):
    new_process()
    cell = Cell(KIND, {"seed": 0})
    stored = Cell.stored(cell.kind, cell.text, "0" * 64)
    outcome = execute(stored)
    assert outcome.error is not None
    assert "should stay as they are during a run" in outcome.error
    assert execute(cell).error is None


def test_an_attack_depends_on_the_core_and_not_on_figures_or_the_runner():
    found = sources_of(Cell("attack", {"attack": "strong", "defense": "optimal-noise(0.1)"}))
    assert {
        "gradveil._random",
        "gradveil.attacks._inverting._starts",
        "gradveil.catalog._spec",
        "gradveil.defenses._optimal_noise",
        "gradveil.sensitivity._structured._sweeps",
        "gradveil.studies.cells._attack",
        "gradveil.studies.cells._parts",
    } <= found
    outward = ("auditing", "cli", "flower", "studies.runner", "studies.figures", "studies.paper")
    assert not [n for n in found if n.startswith(tuple(f"gradveil.{name}" for name in outward))]
    assert "gradveil.studies.cells._bounds" not in found


@pytest.mark.parametrize("kind", ["nope", "__main__:find", "no.such.module:find"])
def test_cells_without_sources_have_a_key_and_fail_when_they_run(kind: str):
    cell = Cell(kind, {"seed": 0})
    assert cell.key != cell.identity
    assert execute(cell).error is not None


def test_a_module_with_a_mistake_counts_with_its_text_and_fails_when_it_runs(package: Path):
    (package / "helper.py").write_text("NUMBER =\n")
    before = key_now()
    assert "SyntaxError" in (execute(Cell(KIND, {"seed": 0})).error or "")
    (package / "helper.py").write_text("NUMBER = = 1\n")
    assert key_now() != before


def test_the_package_by_name_stands_for_its_core(package: Path):
    (package / "kinds.py").write_text("import gradveil\n")
    new_process()
    found = dependencies("sourcesofcells.kinds")
    assert {"gradveil.theory._fisher", "gradveil.attacks", "gradveil._random"} <= found
    assert "gradveil.auditing" not in found


def test_what_other_sources_did_can_be_drawn_when_asked(tmp_path: Path):
    """Keys of one process are those of earlier sources to the next."""
    study = fake.FakeStudy(count=3)
    with closing(Store(tmp_path / "store")) as store:
        store.want(study.cells("quick"))
        work(store, Owner(store.owners), lambda: None)
        with closing(sqlite3.connect(database_path(store.folder))) as database:
            for cell in study.cells("quick")[:2]:
                _rename(database, store.folder / "arrays", cell)
        (own,) = write_all(store, [study], "quick", tmp_path / "own")
        (any_,) = write_all(store, [study], "quick", tmp_path / "any", any_sources=True)
    assert (own.done, own.older, own.error) == (1, 0, None)
    assert (any_.done, any_.older, any_.error) == (3, 2, None)
    assert (
        "3 of 3 cells, 2 of them by earlier sources."
        in (tmp_path / "any" / "report.md").read_text()
    )
    assert len((tmp_path / "any" / "fake.csv").read_text().splitlines()) == 4


def _rename(database: sqlite3.Connection, arrays: Path, cell: Cell) -> None:
    """As if the cell had been done under the key of old: its identity."""
    with database:
        for table in ("cells", "arrays"):
            database.execute(f"UPDATE {table} SET key = ? WHERE key = ?", (cell.identity, cell.key))
    for name in ("product", "ranks"):
        path = array_path(arrays, cell.identity, name)
        path.parent.mkdir(exist_ok=True)
        array_path(arrays, cell.key, name).rename(path)


def test_text_for_readers_does_not_change_the_key_and_code_does(package: Path):
    before = key_now()
    text = (package / "helper.py").read_text()
    (package / "helper.py").write_text(f'"""Ein Maß."""\n\n# a remark\n{text}"""Of digits."""\n')
    assert key_now() == before
    (package / "helper.py").write_text(f"{text}WORDS = 'a # b'\n")
    assert key_now() != before


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ('def f():\n    """One\n\n    two."""\n    return 1  # three\n', "def f():\n    return 1"),
        ('x = """kept"""\n"""left out"""; y = 2\n', 'x = """kept"""\n; y = 2'),
        ('é = "#"  # ü\n"""ö"""\n', 'é = "#"'),
        ('x = "\u2028"  # a\n"""b"""\ny = 1\n', 'x = "\u2028"\ny = 1'),
        ("x = (\n", "x = (\n"),
    ],
)
def test_what_counts_of_a_source(source: str, code: str):
    assert code_of(source.encode()).decode() == code


def test_a_name_that_a_package_hands_on_is_looked_for_where_it_is_defined():
    assert _origin("gradveil.bench", "train") == "gradveil.bench._cases"
    assert _origin("gradveil.attacks", "Unpool") == "gradveil.attacks._unpooling._unpool"
    assert _origin("gradveil.bench", "no_such_name") == "gradveil.bench"
    assert _origin("somebody.else", "train") == "somebody.else"
    assert _origin("gradveil.attacks", "LocalSteps") == "gradveil.messages._local_update"
    found = sources_of(Cell("attack", {"attack": "strong"}))
    assert "gradveil.bench._cases" in found
    assert "gradveil.bench._against._bench" not in found
    assert "gradveil.attacks._unpooling._sampling" in found


def sources_of(cell: Cell) -> set[str]:
    return dependencies(module_of(cell.kind), names_in(cell.text))


def test_what_the_settings_name_counts_and_what_they_do_not_name_does_not():
    """An attack that is added or changed must not make trainings run again."""
    trained = sources_of(Cell("training", {"defense": "optimal-noise(scale=0.1)"}))
    assert {"catalog:optimal-noise", "gradveil.defenses._optimal_noise"} <= trained
    assert "gradveil.defenses._rivals._soteria" not in trained
    assert not [name for name in trained if "attacks._inverting" in name or "attacks._adap" in name]
    assert "gradveil.catalog._entries" not in trained
    attacked = sources_of(Cell("attack", {"attack": "adaptive(unaware=dlg)", "defense": "soteria"}))
    wanted = {"attacks._adaptive", "attacks._dlg", "defenses._rivals._soteria"}
    assert {f"gradveil.{name}" for name in wanted} <= attacked
    assert "gradveil.attacks._grad_inversion" not in attacked


def test_names_count_wherever_settings_have_them(package: Path):
    plain = Cell("training", {"a": [{"b": "dlg(steps=3)"}, 1, None, "Some words: x(y)."]})
    assert names_in(plain.text) == {"catalog:dlg"}
    shown = Cell("training", {"defense": "optimal-noise(0.1, estimator=<an object>)"})
    assert names_in(shown.text) == {"catalog:optimal-noise"}
    assert names_in(Cell("training", {"a": {"dlg": 1}}).text) == {"catalog:dlg"}
    before = Cell("training", {"defense": "sourcesofcells.kinds:find"}).key
    (package / "helper.py").write_text("NUMBER = 2\n")
    new_process()
    assert Cell("training", {"defense": "sourcesofcells.kinds:find"}).key != before


def test_a_users_function_that_builds_from_texts_depends_on_all_that_has_a_name(package: Path):
    (package / "helper.py").write_text(
        "from gradveil.catalog import build_defense\n"
        "def made(family):\n    return build_defense(family + '-noise(0.1)')\n"
    )
    new_process()
    found = dependencies("sourcesofcells.kinds")
    assert {"gradveil.defenses._rivals._soteria", "gradveil.attacks._dlg"} <= found


def test_a_module_that_was_made_at_run_time_has_no_sources(monkeypatch):
    monkeypatch.setitem(sys.modules, "madeup", ModuleType("madeup"))
    assert Cell("training", {"defense": "madeup:Mine"}).key


def test_another_class_or_amount_under_a_name_changes_the_key(monkeypatch):
    cell = {"defense": "gradient-noise(scale=0.1)"}
    new_process()
    before = Cell("training", cell).key
    for change in ({"build": defenses.NoDefense}, {"amounts": {"scale": 2.0}}):
        entry = replace(EVERYTHING["gradient-noise"], **change)
        monkeypatch.setitem(EVERYTHING, "gradient-noise", entry)
        new_process()
        assert Cell("training", cell).key != before
        monkeypatch.undo()
    new_process()


CALLED = [
    *[c for c in STUDIES["adaptive-noise"].cells("quick") if "optimal" in c.text][:3],
    *STUDIES["leakage-through-training"].cells("quick")[-1:],
    *STUDIES["fedavg"].cells("quick")[-1:],
    *STUDIES["frontier"].cells("quick")[3:4],
    *STUDIES["public-plans"].cells("quick")[:1],
    *STUDIES["bound-against-attacks"].cells("quick")[-1:],
    *STUDIES["mnist-noise-tradeoff"].cells("quick")[-1:],
]


@pytest.mark.slow
@pytest.mark.parametrize("cell", CALLED, ids=lambda cell: f"{cell.kind}-{cell.identity[:6]}")
def test_all_code_that_a_cell_runs_is_in_its_key(cell: Cell):
    """An oracle that reads no imports: which files a process really runs functions of."""
    files: set[str] = set()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    function = function_of(cell.kind)
    sys.setprofile(called)
    try:
        function(cell.settings)
    finally:
        sys.setprofile(None)
    root = Path(gradveil.__file__).parent
    own = {Path(name).relative_to(root) for name in files if Path(name).is_relative_to(root)}
    names = {"gradveil." + ".".join(path.with_suffix("").parts) for path in own}
    unknown = {name.removesuffix(".__init__") for name in names} - sources_of(cell)
    without_effect = ("gradveil.studies.runner", "gradveil.catalog._entries")
    assert len(names) > 20
    assert [name for name in unknown if not name.startswith(without_effect)] == []
