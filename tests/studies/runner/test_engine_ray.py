"""Ray gives the bytes of the local engine."""

import json
import subprocess
import sys
from contextlib import closing

import pytest

from gradveil.studies.runner._engine_local import LocalEngine
from gradveil.studies.runner._store import Store
from tests.studies import fake, two_nodes
from tests.studies.processes import REPRODUCE, environment

pytest.importorskip("ray")


@pytest.mark.slow
def test_ray_and_local_give_the_same_bytes(tmp_path):
    study, out = f"{fake.__name__}:MIXED_STUDY", tmp_path / "out"
    options = ["--engine", "ray", "--jobs", "1", "--format", "json", "--out", str(out)]
    command, env = [*REPRODUCE, study, *options], environment(tmp_path / "log")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1, done.stderr
    (failure,) = json.loads(done.stdout)["failures"]
    assert "ArithmeticError: the file is there" in failure["error"]
    LocalEngine(1).run(tmp_path / "local", fake.MIXED_STUDY.cells("quick"), lambda: None)
    with closing(Store(out / "store")) as ray, closing(Store(tmp_path / "local")) as local:
        assert ray.dump() == local.dump()
        assert ray.dump().count('"done"') == 4


@pytest.mark.slow
def test_two_nodes_give_the_bytes_of_one_process(tmp_path):
    command = [sys.executable, "-m", two_nodes.__name__, str(tmp_path / "ray")]
    done = subprocess.run(command, env=environment(tmp_path / "log"), timeout=600)
    assert done.returncode == 0
    cells = two_nodes.cheap_cells()
    LocalEngine(1).run(tmp_path / "local", cells, lambda: None)
    with closing(Store(tmp_path / "ray")) as ray, closing(Store(tmp_path / "local")) as local:
        assert ray.dump() == local.dump()
        assert ray.dump().count('"done"') == len(cells)
