"""Without Flower, the error names the way to get it."""

import subprocess
import sys

WITHOUT_FLWR = """
import sys
from importlib.machinery import PathFinder

class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "flwr":
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
import gradveil.flower
"""


def test_error_names_the_extra():
    done = subprocess.run([sys.executable, "-c", WITHOUT_FLWR], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install gradveil[flower]" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("ImportError: `gradveil.flower` needs Flower")
