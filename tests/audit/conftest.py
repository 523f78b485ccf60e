"""What some tests are not about is left out, because it takes most of the time."""

import pytest

from gradveil.audit.measure import _bounds, _cells


@pytest.fixture
def unmeasured(request, monkeypatch):
    """No bounds, and nobody told apart, but for tests that are marked `measured`."""
    if "measured" in request.fixturenames:
        return
    nothing = None, "not measured in this test"
    for module in (_bounds, _cells):
        monkeypatch.setattr(module, "guarantee_of", lambda *_, **__: nothing)
    monkeypatch.setattr(_cells, "told_apart", lambda *_, **__: (None, []))
    monkeypatch.setattr(_bounds, "_time_ratio", lambda *_, **__: 1.0)


@pytest.fixture
def measured():
    """Asks for all of an audit."""
