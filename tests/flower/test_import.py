"""Without Flower, the error names the way to get it."""

from ..hiding import run_without


def test_error_names_the_extra():
    done = run_without(("flwr",), "import gradveil.flower")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: Found no module `flwr`. Install what gradveil.flower (on Python 3.11"
        ' or later) needs: pip install "gradveil[flower]"'
    )
