"""What Flower's runtime would have set before it calls an app."""

import pytest
from flwr.supercore.task_identity import TaskIdentity

collect_ignore = ["capturing_server.py"]  # a part of an app, importable only there


@pytest.fixture(autouse=True)
def task_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages may be made outside of a run."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
