"""`import gradveil` stays light: no extra, no command line, no plotting."""

import subprocess
import sys

HEAVY = ["flwr", "opacus", "ray", "datasets", "mlxtend", "foolbox", "pandas", "sklearn"]
LAZY = ["typer", "rich", "matplotlib", "scipy", "torchmetrics", "PIL"]


def test_import_pulls_in_nothing_heavy():
    code = (
        "import sys, torch; before = set(sys.modules); import gradveil;"
        f"print(sorted({HEAVY + LAZY!r} & (sys.modules.keys() - before)))".replace(
            "[", "{", 1
        ).replace("]", "}", 1)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
