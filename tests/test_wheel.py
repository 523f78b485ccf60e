"""The built wheel without extras, in a new environment that has torch and numpy only."""

import subprocess
import sys
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .test_import import DEFENDED_TRAINING

ROOT = Path(__file__).parents[1]
FORBIDDEN = ("typer", "rich", "matplotlib", "plotly", "torchmetrics", "scipy", "pandas", "PIL")

pytestmark = pytest.mark.slow


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT)
    (path,) = folder.glob("gradveil-*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, torch, numpy and what these require."""
    folder = tmp_path_factory.mktemp("environment")
    builder = venv.EnvBuilder(symlinks=True)
    builder.create(folder)
    interpreter = Path(builder.ensure_directories(folder).env_exe)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(interpreter, "-I", "-c", where).strip())
    for each in with_requirements("torch", "numpy"):
        link(each, packages)
    pip(interpreter, "install", "--quiet", "--no-deps", wheel)
    return interpreter


def pip(interpreter: Path, *arguments: object) -> str:
    """This environment's pip, at work on another one."""
    return run(sys.executable, "-m", "pip", "--python", interpreter, *arguments)


def with_requirements(*names: str) -> list[Distribution]:
    """Installed distributions and all that they require without extras."""
    waiting, seen = [*names], dict[str, Distribution]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen[name] = distribution(name)
        required = map(Requirement, seen[name].requires or ())
        waiting += [r.name for r in required if not r.marker or r.marker.evaluate({"extra": ""})]
    return [*seen.values()]


def link(installed: Distribution, folder: Path) -> None:
    """Make the files of a distribution visible in a folder."""
    tops = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
    for top in tops:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(installed.locate_file(top))))


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_the_product_alone(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top.split("-")[0] for top in tops} == {"gradveil"}


def test_the_wheel_says_that_it_is_typed(wheel):
    assert "gradveil/py.typed" in zipfile.ZipFile(wheel).namelist()
    assert "Typing :: Typed" in metadata(wheel).get_all("Classifier", [])


def test_the_wheel_requires_torch_and_numpy(wheel):
    required = map(Requirement, metadata(wheel).get_all("Requires-Dist", []))
    assert {each.name for each in required if each.marker is None} == {"torch", "numpy"}


def test_the_extras(wheel):
    extras = set(metadata(wheel).get_all("Provides-Extra", []))
    assert extras == {
        "all", "audit", "cli", "data", "dev", "docs", "flower", "privacy", "ray", "text",
    }  # fmt: skip


def test_the_environment_has_no_extra(python):
    code = f"from importlib.util import find_spec; print([*filter(find_spec, {FORBIDDEN})])"
    assert run(python, "-I", "-c", code) == "[]\n"


def test_it_imports_and_trains_behind_a_defense(python):
    code = f"{DEFENDED_TRAINING}\nprint(gradveil.__file__)"
    trained, path = run(python, "-I", "-W", "error", "-c", code).splitlines()
    assert trained == "trained"
    assert Path(path).is_relative_to(python.parents[1])


def test_the_command_says_what_to_install(python):
    command = [python.with_name("gradveil"), "audit"]
    done = subprocess.run(command, capture_output=True, text=True, env={})
    assert done.returncode == 2
    assert done.stderr == (
        "gradveil: Found no module `typer`. Install what gradveil audit needs:"
        ' pip install "gradveil[audit]"\n'
    )


def test_nothing_is_missing(python):
    assert pip(python, "check") == "No broken requirements found.\n"
