"""What these tests are not about is left out, because it takes most of the time."""

import pytest

from gradveil.auditing import _defense_measurement
from gradveil.auditing._bounds import Guarantee


@pytest.fixture(autouse=True)
def unmeasured(request, monkeypatch):
    """No bounds, and nobody told apart, but for tests that are marked `measured`."""
    if "measured" in request.fixturenames:
        return
    nothing = Guarantee(None, "not measured in this test")
    monkeypatch.setattr(_defense_measurement, "guarantee_of", lambda *_, **__: nothing)
    monkeypatch.setattr(_defense_measurement, "told_apart", lambda *_, **__: None)
    monkeypatch.setattr(_defense_measurement, "_time_ratio", lambda *_, **__: 1.0)


@pytest.fixture
def measured():
    """Asks for all of an audit."""
