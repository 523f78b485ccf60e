"""All Python of README and docs runs, all commands are understood, all that they name exists."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.documents import ROOT, commands_of, pages, parse_commands, python_blocks
from tests.documents import run_python_blocks as run

DOCS = ROOT / "docs"
THEORY = (DOCS / "theory.md").read_text()
SLOW = {"attacks.md", "audit.md"}
"""Pages whose programs take more than a few seconds."""
TESTED_APART = {"README.md", "guarantees.md", "plans.md"}
"""Pages whose output is checked, too."""


WRITTEN = [
    *pages(),
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "results/README.md")),
]
LINK = r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)"
"""A link's file and its heading."""
COMMIT = r"(?<![\w.#/-])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}(?![\w-]|\.\w)"
"""A hash of a commit, or the beginning of one: letters and digits."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def programs() -> list[object]:
    """Every page with Python blocks that is not tested apart."""
    found = [page for page in pages() if python_blocks(page) and page.name not in TESTED_APART]
    return [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] * (page.name in SLOW))
        for page in found
    ]


@pytest.mark.parametrize("page", programs())
@pytest.mark.filterwarnings("ignore::gradveil.sensitivity.HiddenPathWarning")
def test_python_blocks_run(page: Path) -> None:
    assert run(page) > 0


@pytest.mark.parametrize("page", [page for page in pages() if commands_of(page)], ids=name_of)
def test_commands_are_understood(page: Path) -> None:
    assert parse_commands(page) > 0


def test_readme_shows_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ROOT / "README.md") == 2
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    assert not re.search(r"\bU[12]\b", text)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file and a heading that are there; what the site generates is left out."""
    for link, heading in re.findall(LINK, page.read_text()):
        if "generated/" not in link:
            target = (page.parent / link).resolve() if link else page
            assert target.exists(), f"{link} should exist"
            assert not heading or heading in headings_of(target), f"{link}#{heading} should exist"


def headings_of(page: Path) -> set[str]:
    """The anchors of a page and of those that it includes."""
    text = page.read_text()
    included = re.findall(r"^```\{include\} (\S+)", text, re.M)
    lines = [re.sub(r"[^\w\s-]", "", line.lower()) for line in re.findall(r"^#+ (.*)", text, re.M)]
    return {line.strip().replace(" ", "-") for line in lines}.union(
        *(headings_of((page.parent / other).resolve()) for other in included)
    )


def git(*arguments: str) -> str:
    """What it prints; "" where it fails or is not there."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def test_commits_that_are_cited_exist() -> None:
    """Whoever reads a number can look at the code that found it."""
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("a whole clone and git are needed")
    suffixes = {".md", ".rst", ".py", ".txt"}
    found = [folder for name in ("docs", "results", "paper") for folder in (ROOT / name).rglob("*")]
    files = [path for path in found if path.suffix in suffixes and "generated" not in path.parts]
    cited = [
        (name_of(page), commit)
        for page in (ROOT / "README.md", *files)
        for commit in sorted(set(re.findall(COMMIT, page.read_text())))
    ]
    known = [pair for pair in cited if git("rev-parse", "-q", "--verify", f"{pair[1]}^{{commit}}")]
    if not known:
        pytest.skip("the history of the project is needed")
    assert [pair for pair in cited if pair not in known] == []


def test_no_page_is_an_orphan() -> None:
    """Every page of the site is reached from its first one by tables of contents."""
    reached, found = set(), [DOCS / "index.md"]
    while found:
        page = found.pop()
        reached.add(page)
        for tree in re.findall(r"^```\{toctree\}\n(.*?)```", page.read_text(), re.M | re.S):
            entries = [line for line in tree.split() if not line.startswith(("<generated", ":"))]
            named = [(page.parent / f"{entry}.md").resolve() for entry in entries]
            found += [each for each in named if each.exists() and each not in reached]
    assert {page for page in pages() if page.is_relative_to(DOCS)} == reached


def test_the_documentation_is_short() -> None:
    words = sum(len(page.read_text().split()) for page in [*pages(), ROOT / "results/README.md"])
    assert words <= 25_000


def test_blocks_on_plans_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(DOCS / "ideas" / "plans.md") >= 2
    private, model, public = capsys.readouterr().out.splitlines()
    assert private.startswith("private 1 [")
    assert model.startswith("model ")
    assert public.startswith("False ")


def test_blocks_on_guarantees_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(DOCS / "ideas" / "guarantees.md") == 2
    shown = capsys.readouterr().out
    assert "after 3 rounds, for each example (one example replaced by an empty one" in shown
    assert "0.341" in shown  # the recognition bound, as Monte Carlo has it


def test_named_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", THEORY)
    assert len(named) >= 12
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} should define {name}"


def test_named_sources_exist() -> None:
    named = re.findall(
        r"`((?:messages|sensitivity|mechanisms|defenses|theory)/(?:_\w+/)?_\w+\.py)`", THEORY
    )
    assert len(named) >= 12
    for path in named:
        assert (ROOT / "src" / "gradveil" / path).exists(), f"{path} should exist"
