"""Python code in a process of its own, as if some packages were not installed."""

import subprocess
import sys

OPTIONAL = (
    *("typer", "rich", "click", "matplotlib", "plotly", "jinja2", "torchmetrics", "scipy"),
    *("pandas", "PIL", "flwr", "ray", "datasets", "mlxtend", "foolbox", "sklearn"),
    *("opacus", "cryptography"),
)
"""What extras bring: nothing of it may be needed by a client."""

_HIDE = """
import sys
from importlib.machinery import PathFinder

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        hidden = name.partition(".")[0] in {names!r}
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""


def run_without(
    names: tuple[str, ...], code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the code as if the packages were not installed."""
    command = [sys.executable, "-c", _HIDE.format(names=names) + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True)
