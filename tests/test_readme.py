"""The README's Python blocks run, one after the other, as a reader would run them."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_python_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 3
    exec(compile("\n".join(blocks), str(README), "exec"), {})
    shown = capsys.readouterr().out
    assert "least mean squared error per pixel" in shown
    assert "False the message jumps or hides: derivatives explain" in shown
