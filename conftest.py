"""Where Flower is missing, as on Python 3.10, its modules and their tests are left out."""

from importlib.util import find_spec

HAS_FLOWER = find_spec("flwr") is not None

collect_ignore = [] if HAS_FLOWER else ["src/gradveil/flower", "tests/flower"]


def pytest_report_header() -> str | None:
    """Say what is left out."""
    return None if HAS_FLOWER else "Flower is not installed: gradveil.flower is not tested."
