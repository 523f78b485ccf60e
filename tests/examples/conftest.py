"""A copy of an example, and its commands run in it as a user would run them."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gradveil

ROOT = Path(__file__).parents[2]
CODE = Path(gradveil.__file__).parents[1]

Example = Callable[[str], Path]
Run = Callable[..., str]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    """A function that copies an example, by the name of its folder, and says where the copy is."""

    def copied(name: str) -> Path:
        ignored = shutil.ignore_patterns("__pycache__")
        return shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=ignored)

    return copied


@pytest.fixture
def run() -> Run:
    """A function that runs a shell command in a folder, and returns what it printed."""

    def printed(folder: Path, command: str) -> str:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = f".{os.pathsep}{CODE}"
        command = command.replace("PYTHONPATH=. ", "")  # which is set above, with these sources
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return printed


def commands_of(readme: Path) -> list[str]:
    """The lines of a README's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", readme.read_text(), flags=re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
