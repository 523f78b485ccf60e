"""Checkpoints: whole, their own run's, and never code."""

import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, OptimalNoise
from gradveil.federated import FederatedRun
from gradveil.federated._run import load_checkpoint, save_checkpoint
from gradveil.shapes import ModelSource

from .small import assert_same, client, run, server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the checkpoint after round 6 of a run."""
    run(GradientNoise(0.1)).run(6, folder=tmp_path, checkpoint_every=2)
    return tmp_path


def resumed(folder: Path) -> FederatedRun:
    one = run(GradientNoise(0.1))
    one.resume(folder)
    return one


def assert_ends_like_a_whole_run(one: FederatedRun, folder: Path) -> None:
    whole = run(GradientNoise(0.1))
    whole.run(9)
    one.run(9, folder=folder)
    assert_same(whole.server.model.state_dict(), one.server.model.state_dict())
    assert whole.history.to_csv() == one.history.to_csv()


def test_it_continues(folder: Path) -> None:
    one = resumed(folder)
    assert len(one.rounds) == 6
    assert_ends_like_a_whole_run(one, folder)


DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "one bit": lambda data: data[:-99] + bytes([data[-99] ^ 1]) + data[-98:],
    "foreign": lambda data: pickle.dumps({"step": 3}),
    "text": lambda data: b"hello\nworld\nhow are you",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_one_is_refused_and_left_alone(name: str, folder: Path) -> None:
    path = folder / "checkpoint"
    path.write_bytes(DAMAGES[name](path.read_bytes()))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"truncated or damaged, or of another kind"):
        resumed(folder)
    assert path.read_bytes() == before


def test_without_one_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"should hold a checkpoint\. Found none"):
        load_checkpoint(tmp_path, "")


OTHERS = {
    "defense": lambda: run(GradientNoise(0.2)),
    "seed": lambda: run(GradientNoise(0.1), seed=1),
    "fraction": lambda: run(GradientNoise(0.1), fraction=0.5),
    "clients": lambda: run(GradientNoise(0.1), clients=4),
    "data": lambda: FederatedRun(
        server(), [client(i, GradientNoise(0.1), count=11) for i in range(3)], cross_entropy
    ),
    "weights": lambda: FederatedRun(
        server(seed=1), [client(i, GradientNoise(0.1)) for i in range(3)], cross_entropy
    ),
    "optimizer": lambda: _with_rate(0.02),
}


def _with_rate(lr: float) -> FederatedRun:
    changed = server()
    changed.optimizer = torch.optim.Adam(changed.model.parameters(), lr=lr)
    return FederatedRun(changed, [client(i, GradientNoise(0.1)) for i in range(3)], cross_entropy)


@pytest.mark.parametrize("name", OTHERS)
def test_that_of_another_run_is_refused_and_left_alone(name: str, folder: Path) -> None:
    before = (folder / "checkpoint").read_bytes()
    with pytest.raises(ValueError, match="should come from a run with this data, model"):
        OTHERS[name]().resume(folder)
    assert (folder / "checkpoint").read_bytes() == before
    _with_rate(0.01).resume(folder)


class Evil:
    """Would make a folder when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    """Even with a right checksum and fingerprint."""
    trap = tmp_path / "trap"
    save_checkpoint(tmp_path, {"state": Evil(str(trap))}, "print")
    content = (tmp_path / "checkpoint").read_bytes()
    assert hashlib.sha256(content[32:]).digest() == content[:32]
    with pytest.raises(ValueError, match="should hold tensors, numbers and text"):
        load_checkpoint(tmp_path, "print")
    assert not trap.exists()


def test_what_a_cached_defense_remembers_is_in_it(tmp_path: Path) -> None:
    def fresh() -> FederatedRun:
        return run(OptimalNoise(0.1, source=ModelSource(4)))

    whole, one = fresh(), fresh()
    whole.run(6)
    fresh().run(3, folder=tmp_path)
    one.resume(tmp_path)
    one.run(6)
    assert_same(whole.server.model.state_dict(), one.server.model.state_dict())
