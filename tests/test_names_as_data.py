"""Specifications are read in one place, defenses are asked what they are, one step is shared."""

import re
from pathlib import Path

import pytest

import gradveil

ROOT = Path(gradveil.__file__).parent
FILES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}

PARSING = re.compile(
    r"""(partition|split|find|index)\(\s*["']\("""  # the name before a parenthesis
    r"""|scale\|ratio|ratio\|scale"""  # amounts by a regular expression
    r"""|ast\.(parse|literal_eval)"""
)
NAMES = r"(optimal|no-defense|gradient-|clamped-noise|cached|adaptive|noisy|pruning)"
GUESSING = re.compile(
    rf"""["']{NAMES}[^"']*["']\s+(not\s+)?in\s+\w"""
    rf"""|\.(startswith|endswith|removeprefix|find|count)\(\s*["']{NAMES}"""
    r"""|getattr\((self|\w*defense), ["'](noise|clip|scale|ratio|target_error)["']"""
)
OF_A_CLASS = re.compile(
    r"isinstance\([^()]*\(?[^()]*\b(ClampedNoise|OptimalClampedNoise|NoDefense)\b"
)


def places(pattern: re.Pattern[str], but: tuple[str, ...]) -> list[str]:
    """Where a pattern occurs, outside of some folders and files."""
    return [
        f"{name}:{text[: found.start()].count(chr(10)) + 1}: {found.group()}"
        for name, text in FILES.items()
        if not name.startswith(but)
        for found in pattern.finditer(text)
    ]


def test_specifications_are_read_by_the_catalog_only() -> None:
    assert places(PARSING, ("catalog/",)) == []


def test_what_a_defense_is_is_not_guessed_from_its_name_or_class() -> None:
    assert places(GUESSING, ("catalog/",)) == []
    assert places(OF_A_CLASS, ("defenses/",)) == []


def test_nobody_but_defenses_plans_and_applies() -> None:
    both = [name for name, text in FILES.items() if ".plan(" in text and ".apply(" in text]
    assert [name for name in both if not name.startswith("defenses/")] == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (PARSING, 'name = spec.partition("(")[0]'),
        (PARSING, "name = str(spec).split('(')[0]"),
        (PARSING, 're.findall(r"(scale|ratio|clip|step)=([0-9.]+)", spec)'),
        (GUESSING, 'option = "ratio" if "pruning" in name else "scale"'),
        (GUESSING, 'marker = "o" if name.startswith("optimal") else "s"'),
        (GUESSING, 'clip = getattr(defense, "clip", None)'),
        (GUESSING, 'points[0].defense.find("pruning") >= 0'),
        (OF_A_CLASS, "if isinstance(self.defense, NoDefense):"),
        (OF_A_CLASS, "if isinstance(defense, (ClampedNoise, OptimalClampedNoise)):"),
    ],
)
def test_the_rules_know_what_they_forbid(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)
