"""The first screen in a real browser, at 1,440 and 390 px, and on paper."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradveil.audit import AuditResult
from gradveil.audit.report import write_results
from tests.audit.example_frontier import (
    bare_frontier_result,
    frontier_result,
)

from .browsing import CONTRASTS, Pages

PAPER = {"width": 703, "height": 1032}
"""A4 without its margins of 12 mm, in CSS pixels."""
HOSTILE = '<img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(frontier_result(), tmp_path_factory.mktemp("frontier"))


@pytest.fixture(scope="module")
def desk(browser: Any, report: Path) -> Iterator[Any]:
    """The report at desktop width, for tests that do not mind each other."""
    found = Pages(browser)
    yield found.open(report)
    found.close()


@pytest.fixture(scope="module")
def phone(browser: Any, report: Path) -> Iterator[Any]:
    """The same on a telephone."""
    found = Pages(browser)
    yield found.open(report, 390)
    found.close()


def bottom(page: Any, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    return float(box["y"] + box["height"])


def pdf_pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


def axis_title(page: Any) -> str:
    return str(page.locator("#chart-frontier .ytitle").text_content())


def test_a_desktop_shows_answer_picture_and_images_at_once(desk: Any):
    page = desk
    assert page.evaluate("document.documentElement.scrollWidth") == 1440
    assert page.locator("h1").inner_text() == "Use optimal noise with scale 0.3"
    assert page.locator(".sentences dd").count() == 3
    for part in (".sentences", ".shown", "#chart-frontier"):
        assert bottom(page, part) <= 900, part
    assert page.locator(".shown img").count() == 3 * 8
    fits = "(e) => e.scrollWidth <= e.clientWidth"
    assert page.locator(".scroll:has(#table-points)").evaluate(fits)
    labels = page.locator("#chart-frontier .textpoint").all_text_contents()
    assert {"recommended", "no defense"} <= set(labels)


def test_a_telephone_shows_answer_and_images_first_and_cards_for_rows(phone: Any):
    page = phone
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    for part in ("h1", ".sentences", ".shown"):
        assert bottom(page, part) <= 844, part
    wide = "(rows) => rows.filter((e) => e.getBoundingClientRect().right > 390).length"
    for cells in ("#table-points td", ".card", "#chart-frontier", ".legend button", "select"):
        assert page.locator(cells).evaluate_all(wide) == 0, cells
    first = page.locator("#table-points tbody tr").nth(1)
    assert first.locator("td").count() == len(first.locator("td:visible").all()) == 10
    label = "(e) => getComputedStyle(e, '::before').content"
    assert first.locator("td").nth(1).evaluate(label) == '"Error left"'


@pytest.mark.parametrize("name", ["desk", "phone"])
def test_every_text_of_it_is_readable(name: str, request: pytest.FixtureRequest):
    page = request.getfixturevalue(name)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 300
        assert [found for found in contrasts if found[0] < 4.5] == []


def test_the_undefended_point_leaves_the_height_to_the_others(desk: Any):
    page = desk
    heights = "document.getElementById('chart-frontier').data.map((t) => [t.meta.defense, t.y])"
    traces = page.evaluate(heights)
    undefended = next(y[0] for name, y in traces if name == "no defense")
    others = [y for name, ys in traces if name != "no defense" for y in ys]
    span = max([undefended, *others]) - min(others)
    assert (max(others) - min(others)) / span > 0.9


def test_the_switch_changes_what_counts_as_leakage(desk: Any):
    page = desk
    keys = page.locator("#choose-leak option").evaluate_all("(all) => all.map((e) => e.value)")
    assert keys == ["attack", "share"]
    titles = [axis_title(page)]
    page.locator("#choose-leak").select_option("share")
    find = "(word) => document.querySelector('#chart-frontier .ytitle').textContent.includes"
    page.wait_for_function(f"{find}(word)", arg="candidates")
    titles.append(axis_title(page))
    assert len(set(titles)) == 2
    page.locator(".legend [data-defense='pruning']").click()
    shown = "document.getElementById('chart-frontier').data.filter((t) => t.visible).length"
    page.locator("#choose-leak").select_option("attack")
    page.wait_for_function(f"() => {shown} === 8")


def test_a_line_can_be_copied(desk: Any):
    page = desk
    button = page.locator("[data-copy]").first
    button.click()
    page.get_by_text("Copied").first.wait_for()
    page.context.grant_permissions(["clipboard-read"])
    answer = frontier_answers(frontier_result())[0]
    assert page.evaluate("navigator.clipboard.readText()") == answer.python


def frontier_answers(result: AuditResult) -> Any:
    return result.frontier.answers


def test_paper_takes_two_pages_and_nothing_is_cut(desk: Any):
    page = desk
    assert pdf_pages(page.pdf(prefer_css_page_size=True)) == 2
    page.emulate_media(media="print", color_scheme="light")
    page.set_viewport_size(PAPER)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(
        "() => document.querySelector('#chart-frontier')._fullLayout.width === 680"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    for part in ("header", "main"):
        assert page.locator(part).bounding_box()["height"] <= PAPER["height"], part
    for seen in ("#h-answer", ".sentences", ".shown", "#chart-frontier", "#answers", "#points"):
        assert page.locator(seen).first.is_visible(), seen
    for unseen in ("nav", "#summary", "#rounds", "#layers", "#reading", "[data-copy]"):
        assert not page.locator(unseen).first.is_visible(), unseen
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1440, "height": 900})


def test_a_frontier_of_tables_without_training_fits_a_telephone(tmp_path: Path, pages: Pages):
    page = pages.open(write_results(bare_frontier_result(), tmp_path), 390, charts=False)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("img").count() == page.locator(".chart").count() == 0
    assert pdf_pages(page.pdf(prefer_css_page_size=True)) == 2


def test_hostile_names_of_curves_and_answers_stay_text(tmp_path: Path, pages: Pages):
    result = frontier_result(size=2)
    curves = tuple(replace(c, name=f"{HOSTILE}{c.name}") for c in result.frontier.curves)
    changes = dict.fromkeys(("title", "sentence", "python", "rests_on"), HOSTILE)
    answers = tuple(replace(a, **changes) for a in result.frontier.answers)
    frontier = replace(result.frontier, curves=curves, answers=answers, guess=HOSTILE)
    page = pages.open(write_results(replace(result, frontier=frontier), tmp_path))
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("window.hacked") is None
