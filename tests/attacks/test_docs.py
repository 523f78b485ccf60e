"""The Python blocks of the attacks' page run, one after the other."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "attacks.md"


def test_python_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "docs_attacks"})
    assert "tensor" in capsys.readouterr().out
