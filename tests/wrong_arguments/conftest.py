"""A folder that stays empty, and the global generator untouched."""

from pathlib import Path

import pytest


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, global_rng_watch: None) -> Path:
    """The working folder of a wrong call."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
