"""Every example is whole: a README that is short, and code that is tested."""

from pathlib import Path

import pytest

from .conftest import ROOT

EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir())


def test_all_are_there() -> None:
    names = {path.name for path in EXAMPLES}
    assert names >= {"audit_your_model", "flower", "flower_private", "lightning"}
    assert "opacus_comparison" in names


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_each_has_a_readme_and_a_test(folder: Path) -> None:
    assert (folder / "README.md").read_text().startswith("# ")
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert any(f'"{folder.name}"' in text for text in tests if "EXAMPLE" in text or "Run" in text)
