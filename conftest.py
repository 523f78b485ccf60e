"""Where Flower is missing, as on Python 3.10, its modules and their tests are left out.

Each process of the tests has one thread: several that share the processors wait for each other.
"""

import os
from importlib.util import find_spec

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

HAS_FLOWER = find_spec("flwr") is not None

collect_ignore = [] if HAS_FLOWER else ["src/gradveil/flower", "tests/flower"]


def pytest_report_header() -> str | None:
    """Say what is left out."""
    return None if HAS_FLOWER else "Flower is not installed: gradveil.flower is not tested."
