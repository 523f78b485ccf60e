"""The report as a file: its numbers, its gaps, its safety; the browser has tests of its own."""

import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import pytest

from gradveil.audit import AuditResult
from gradveil.audit._result import Point
from gradveil.audit.report import render_report, write_results
from gradveil.audit.report._tables import Table, attack_table, points_table, summary_table
from gradveil.audit.report._words import interval, number
from gradveil.scoring import Interval
from tests.audit.example_result import (
    example_result,
    incomplete_result,
    tabular_result,
    unattacked_result,
)


def estimate(value: Interval) -> str:
    """A mean with its interval, as in a cell."""
    return f"{number(value.mean)} {interval(value)}".strip()


HOSTILE = "<img src=x onerror=\"hacked=1\"></script><script>alert('1')</script>&amp;"


class Tables(HTMLParser):
    """The cells of every table by its id: rows of (exact value or None, text)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[list[tuple[str | None, str]]]] = {}
        self._table = ""
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "table":
            self._table = found.get("id") or ""
            self.rows[self._table] = []
        elif tag == "tr":
            self.rows[self._table].append([])
        elif tag in ("td", "th"):
            self.rows[self._table][-1].append((found.get("data-value"), ""))
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._open:
            value, text = self.rows[self._table][-1].pop()
            self.rows[self._table][-1].append((value, text + data))


def tables(html: str) -> dict[str, list[list[tuple[str | None, str]]]]:
    parser = Tables()
    parser.feed(html)
    return parser.rows


def rows_of(html: str, table: Table) -> list[dict[str, tuple[str | None, str]]]:
    """The rows of a table of the page, each cell by the heading of its column."""
    labels = [column.label for column in table.columns]
    head, *rows = tables(html)[f"table-{table.name}"]
    assert all(text.startswith(label) for (_, text), label in zip(head, labels, strict=True))
    return [dict(zip(labels, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def html() -> str:
    return render_report(example_result())


def without_plotly(html: str) -> str:
    """The page without the library that it embeds."""
    from plotly.offline import get_plotlyjs

    assert get_plotlyjs() in html
    return html.replace(get_plotlyjs(), "")


def test_numbers_of_the_summary_are_those_of_the_result(html: str):
    result = example_result()
    for row, defense in zip(rows_of(html, summary_table(result)), result.defenses, strict=True):
        expected = {
            "Signal kept": defense.utility_first,
            "Noise": defense.utility_second,
            "Message": defense.bytes_sent,
            "Time": defense.time_ratio,
        }
        assert {name: float(row[name][0] or "nan") for name in expected} == expected


def test_a_bound_is_a_number_or_no_guarantee(html: str):
    result = example_result()
    for row, defense in zip(rows_of(html, summary_table(result)), result.defenses, strict=True):
        value, text = row["Reference error"]
        if defense.bound is None:
            assert (value, text) == row["In decibels"] == (None, "no guarantee")
            assert row["A limit for"][1] == "–"
        else:
            assert float(value or "nan") == defense.bound.mse
            assert text.startswith(number(defense.bound.mse))
            assert row["A limit for"][1] == defense.bound.prior


def test_numbers_of_the_points_are_those_of_the_result(html: str):
    result = example_result()
    rows = rows_of(html, points_table(result))
    points = [point for _, point in result.frontier.points()]
    for row, point in zip(rows, points, strict=True):
        assert point.loss is not None
        value, text = row["Loss"]
        assert float(value or "nan") == point.loss.mean
        assert text == estimate(point.loss)


def test_numbers_of_the_attacks_are_those_of_the_result(html: str):
    result = example_result()
    rows = iter(rows_of(html, attack_table(result)))
    for defense in result.defenses:
        for attack in defense.attacks:
            row = next(rows)
            assert attack.psnr is not None
            assert row["Error"][1] == estimate(attack.mse)
            assert row["PSNR"][1] == estimate(attack.psnr)
            assert float(row["Error"][0] or "nan") == attack.mse.mean
    assert next(rows, None) is None


def test_every_layer_and_verdict_is_there(html: str):
    result = example_result()
    rows = tables(html)["table-layers"]
    assert [row[0][1].split()[0] for row in rows[1:]] == [x.name for x in result.defenses[0].layers]
    for place, defense in enumerate(result.defenses, start=1):
        for row, layer in zip(rows[1:], defense.layers, strict=True):
            assert row[place][1].startswith(number(layer.noise) if layer.noise else "no noise")
        assert html.count(f"<p>{defense.verdict}</p>") >= 1


def test_each_picture_is_embedded_with_an_alternative_text(html: str):
    result = example_result()
    count = len(result.originals) * (len(result.defenses) * 3 + 2)
    assert html.count('<img src="data:image/png;base64,') == count
    assert html.count('alt="Original') == count
    run = result.defenses[1].attacks[1].runs[0]
    assert run.psnr is not None
    alt = f"Original 1 as adaptive rebuilt it under noise, {number(run.psnr[0])} dB"
    assert f'{run.pictures[0]}" alt="{alt}"' in html


def test_setup_says_how_to_reproduce(html: str):
    setup = example_result().setup
    for part in (
        example_result().notes[0],
        setup.command,
        setup.model,
        setup.versions["torch"],
        "1 × 28 × 28",
    ):
        assert part in html


def test_nothing_outside_the_file_is_named(html: str):
    page = without_plotly(html)
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page


def test_the_same_result_gives_the_same_bytes(tmp_path: Path):
    result = AuditResult.from_json(example_result().to_json())
    path = write_results(example_result(), tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text() == render_report(result)
    assert [file.name for file in tmp_path.glob("*.html")] == ["report.html"]


def test_hostile_names_stay_text():
    result = example_result()
    defense = result.defenses[1]
    assert defense.bound is not None
    hostile = replace(
        defense,
        name=HOSTILE,
        defense=HOSTILE,
        verdict=HOSTILE,
        formal_privacy=HOSTILE,
        bound=replace(defense.bound, prior=HOSTILE, method=HOSTILE),
        attacks=tuple(replace(a, attack=f"{HOSTILE}{a.attack}") for a in defense.attacks),
    )
    setup = replace(result.setup, model=HOSTILE, data=HOSTILE, command=HOSTILE)
    page = without_plotly(render_report(replace(result, setup=setup, defenses=(hostile,))))
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 3
    assert "&lt;img src=x" in page


def test_inputs_that_are_not_images():
    page = render_report(tabular_result())
    assert "The inputs are not images" in page
    assert "<img" not in page
    assert "PSNR" not in without_plotly(page)


def test_an_incomplete_audit_says_so():
    page = render_report(incomplete_result())
    assert 'role="status"><strong>Incomplete.' in page
    assert "not attacked" in page
    assert "Incomplete." not in render_report(example_result())


def test_an_audit_without_attacks():
    page = render_report(unattacked_result())
    assert "No attack was run: nothing here says what can be recovered" in page


def test_an_audit_without_anything():
    result = example_result()
    nothing = Point("no-defense", None, (), None, None)
    frontier = replace(result.frontier, curves=(), undefended=nothing)
    page = render_report(
        replace(result, defenses=(), frontier=frontier, originals=(), stopped="time budget")
    )
    assert "Incomplete." in page
    assert len(page) < 100_000, "plotly should not be embedded without charts"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="should take the results"):
        write_results(example_result(), tmp_path / "file")


@pytest.mark.parametrize("module", ["_charts", "_write"])
def test_plotly_is_imported_only_to_write(module: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    spec = find_spec(f"gradveil.audit.report.{module}")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))
