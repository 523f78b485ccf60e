"""The Python blocks of the attacks' page run, one after the other."""

from pathlib import Path

from tests.documents import run_python_blocks

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"


def test_python_blocks_run(capsys):
    assert run_python_blocks(PAGE, "docs_attacks") >= 4
    shown = capsys.readouterr().out
    assert "tensor" in shown
    assert "{'accuracy': 1.0, 'tokens': 1.0}" in shown
