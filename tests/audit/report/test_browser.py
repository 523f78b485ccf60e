"""The report in a real browser: headless Chromium through Playwright."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradveil.audit._result import AuditResult
from gradveil.audit.report import write_results
from tests.audit.example_result import example_result, tabular_result

from .browsing import CONTRASTS, Pages

HOSTILE = '<img src=x onerror="window.hacked=1">'
DISPLAY = "(e) => getComputedStyle(e).display"
BLANK = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  return [...document.images].filter((image) => {
    if (!image.complete || !image.naturalWidth) return true;
    canvas.drawImage(image, 0, 0);
    const {data} = canvas.getImageData(0, 0, image.naturalWidth, image.naturalHeight);
    const values = data.filter((_, i) => i % 4 !== 3);
    return values.every((value) => value === values[0]);
  }).map((image) => image.alt);
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(example_result(), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(browser: Any, report: Path) -> Iterator[Any]:
    """The whole report at desktop width, for tests that do not mind each other."""
    found = Pages(browser)
    yield found.open(report)
    found.close()


def column(page: Any, table: str, heading: str) -> list[str]:
    cells = page.locator(f"#table-{table} tbody [data-label='{heading}']")
    return [text.split()[0] for text in cells.all_inner_texts()]


def trace_names(page: Any) -> list[str]:
    script = "document.getElementById('chart-frontier').data.map((t) => t.meta.defense)"
    return list(page.evaluate(script))


def hover(page: Any, place: int) -> str:
    """The text that appears over a mark of the chart."""
    mark = page.locator("#chart-frontier .scatterlayer .trace .point").nth(place)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(0, 0)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.locator("#chart-frontier .hoverlayer .hovertext")
    label.first.wait_for()
    return " ".join(label.all_text_contents())


def test_a_click_sorts_and_a_second_one_reverses(page: Any):
    heads = page.locator("#table-attacks thead th")
    head = heads.filter(has_text="Error")
    head.locator("button").click()
    errors = [float(text) for text in column(page, "attacks", "Error")]
    assert errors == sorted(errors)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert [float(text) for text in column(page, "attacks", "Error")] == sorted(
        errors, reverse=True
    )
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("#table-attacks [aria-sort=none]").count() == heads.count() - 1


def test_the_keyboard_sorts_and_no_guarantee_comes_last(page: Any):
    head = page.locator("#table-summary thead th").filter(has_text="Reference error")
    button = head.locator("button")
    for key, reverse in (("Enter", False), ("Space", True)):
        button.focus()
        page.keyboard.press(key)
        found = column(page, "summary", "Reference error")
        bounds = [float(text) for text in found[:6]]
        assert bounds == sorted(bounds, reverse=reverse)
        assert found[6:] == ["no"] * 3
    page.locator("#table-summary thead button").first.focus()
    page.keyboard.press("Enter")
    names = page.locator("#table-summary tbody th").all_inner_texts()
    assert names == sorted(names)


def test_the_first_tab_skips_to_the_report(report: Path, page: Any):
    page.reload()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_hovering_a_mark_shows_its_defense(page: Any):
    names = trace_names(page)
    assert len(names) == 9
    for place in (1, 5, 8):
        text = hover(page, place)
        assert names[place] in text
        assert "Error left: " in text


def test_a_defense_can_be_hidden(page: Any):
    points = "document.querySelectorAll('#chart-frontier .point').length"
    page.wait_for_function(f"{points} === 9")
    button = page.locator(".legend [data-defense='noise']")
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    page.wait_for_function(f"{points} === 8")
    button.click()
    page.wait_for_function(f"{points} === 9")


@pytest.mark.parametrize("width", [390, 1440])
def test_the_layout_holds_and_every_text_is_readable(report: Path, pages: Pages, width: int):
    page = pages.open(report, width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for chart in page.locator(".chart").all():
        inner = chart.locator(".main-svg").first.bounding_box()
        outer = chart.bounding_box()
        assert inner["width"] <= outer["width"] <= width
    for scroll in page.locator(".scroll:has(.stacks)").all():
        assert scroll.evaluate("(e) => e.scrollWidth <= e.clientWidth") or width > 390
    cards = page.locator("#table-summary tbody tr").first.evaluate(DISPLAY)
    assert cards == ("grid" if width == 390 else "table-row")
    for cell in page.locator("#table-summary tbody tr").first.locator("td").all():
        box = cell.bounding_box()
        assert box["width"] > 0
        assert width > 390 or box["x"] + box["width"] <= 390
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 300
        assert [found for found in contrasts if found[0] < 4.5] == []


def test_the_background_follows_the_scheme(page: Any):
    background = "getComputedStyle(document.body).backgroundColor"
    sums = []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        sums.append(sum(map(int, re.findall(r"\d+", page.evaluate(background)))))
    assert sums[0] < 100
    assert sums[1] > 700


def test_pictures_are_there_crisp_and_not_blank(page: Any):
    assert page.locator("img").count() == 8 * (9 * 3 + 2)
    assert page.evaluate(BLANK) == []
    assert page.locator("img:not([alt]), img[alt='']").count() == 0
    rendering = "(e) => getComputedStyle(e).imageRendering"
    assert page.locator("img").first.evaluate(rendering) == "pixelated"


def test_landmarks_headings_and_tables_are_marked_up(page: Any):
    for name in ("header", "nav", "main", "footer"):
        assert page.locator(name).count() == 1
    assert page.locator("h1").count() == 1
    assert page.locator("table:not(:has(caption)), th:not([scope])").count() == 0
    assert page.locator("[role=region]:not([tabindex='0'])").count() == 0
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    ids = page.evaluate("[...document.querySelectorAll('main [id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_paper_is_white_and_holds_the_charts(page: Any):
    page.emulate_media(color_scheme="dark")
    widths = "[...document.querySelectorAll('.chart')].map((e) => e._fullLayout.width)"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {widths}; }})")
    before = page.evaluate(widths)
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
    assert page.evaluate("window.printed") == [680]
    page.wait_for_function(f"{widths}.join() === '{','.join(map(str, before))}'")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    page.emulate_media(media="screen", color_scheme="light")


def hostile(result: AuditResult) -> AuditResult:
    defenses = tuple(replace(d, name=f"{HOSTILE} {d.name}") for d in result.defenses)
    curves = tuple(replace(c, name=f"{HOSTILE} {c.name}") for c in result.frontier.curves)
    frontier = replace(result.frontier, curves=curves)
    setup = replace(result.setup, model=HOSTILE)
    return replace(result, defenses=defenses, frontier=frontier, setup=setup)


def test_a_hostile_name_is_shown_and_not_run(tmp_path: Path, pages: Pages):
    page = pages.open(write_results(hostile(example_result()), tmp_path))
    assert HOSTILE in hover(page, 0)
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("window.hacked") is None


def test_inputs_that_are_not_images_have_charts_but_no_pictures(tmp_path: Path, pages: Pages):
    page = pages.open(write_results(tabular_result(), tmp_path), width=390)
    assert page.locator("img").count() == 0
    assert page.locator("#chart-frontier .point").count() == 9
    assert page.evaluate("document.documentElement.scrollWidth") == 390
