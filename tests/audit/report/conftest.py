"""A real browser for the tests of the report: headless Chromium through Playwright."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from .browsing import BROWSERS, FLAGS, Pages


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=path, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture
def pages(browser: Any) -> Iterator[Pages]:
    found = Pages(browser)
    yield found
    found.close()
