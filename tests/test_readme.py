"""The README's Python blocks run, one after the other, as a reader would run them."""

from pathlib import Path

from tests.documents import run_python_blocks

README = Path(__file__).parents[1] / "README.md"


def test_python_blocks_run(capsys):
    assert run_python_blocks(README) >= 3
    shown = capsys.readouterr().out
    assert "least mean squared error per pixel" in shown
    assert "False the message jumps or hides: derivatives explain" in shown
