"""A run that is killed, again and again, at random moments, ends with the same bytes."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gradveil.federated import TrainingConfig, train

SETTINGS: dict[str, Any] = {
    "model": "tests.federated.small:flat_mlp",
    "rounds": 24,
    "limit": 192,
    "held_out": 32,
    "clients": 3,
    "batch_size": 8,
    "fraction": 0.7,
    "partition": "dirichlet",
    "evaluate_every": 5,
    "defense": "optimal-noise(scale=0.01, source=model-source(refresh_every=3))",
}
CHILD = """
import sys, torch
torch.set_num_threads(1)
from gradveil.federated import TrainingConfig, train
print("start", flush=True)
train(TrainingConfig(**eval(sys.argv[1])), out=sys.argv[2], resume=True, checkpoint_every=1,
      on_round=lambda row: print(row.round, flush=True), allow_imports=True)
"""
ROOT = Path(__file__).parents[2]


def run_child(config: TrainingConfig, folder: Path, kill_after: int | None, delay: float) -> int:
    """The return code; killed a moment after it reported `kill_after` rounds of its own."""
    command = [sys.executable, "-c", CHILD, repr(config.to_dict()), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        reported = -1
        while kill_after is not None and reported < kill_after and child.stdout.readline():
            reported += 1
        if kill_after is not None:
            time.sleep(delay)
            child.send_signal(signal.SIGKILL)
        child.stdout.read()
        return child.wait()


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_killed_runs_end_with_the_same_bytes(kills: int, images: str, tmp_path: Path) -> None:
    config = TrainingConfig(data=images, **SETTINGS)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config, out=whole, allow_imports=True)
    dice = random.Random(kills)
    for _ in range(kills):
        code = run_child(config, broken, dice.randint(0, 16 // kills), dice.uniform(0, 0.1))
        assert code == -signal.SIGKILL
    assert run_child(config, broken, None, 0) == 0
    for name in ("model.pt", "rounds.csv"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes(), name
