"""Text names registered entries; code of the user's needs a word of the user's."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import gradveil
from gradveil.catalog import Spec, build_attack, build_defense
from gradveil.federated import TrainingConfig, build_run
from gradveil.models import build_model

MODULE = """
import os, subprocess
from pathlib import Path
from torch import nn
import gradveil
Path(__file__).with_name("imported").touch()
run = os.system

def touch(path) -> None:
    Path(path).touch()

def make(width: int = 2) -> nn.Module:
    return nn.Linear(width, 2)

class Touch:
    def __init__(self, path):
        touch(path)

class Mine(gradveil.GradientNoise):
    pass
"""

BUILDERS: dict[str, Callable[..., Any]] = {
    "defense": build_defense,
    "attack": build_attack,
    "estimator": lambda text, **options: Spec.parse(text).build("estimator", **options),
    "model": build_model,
}
HOSTILE = [
    "os:system(command='touch {0}')",
    "posix:system(command='touch {0}')",
    "subprocess:run(args=['touch', '{0}'])",
    "subprocess:Popen(args=['touch', '{0}'])",
    "shutil:copyfile(src='{1}', dst='{0}')",
    'timeit:timeit(stmt=\'open(r"{0}", "w")\')',
    "builtins:open(file='{0}', mode='w')",
    "pathlib:Path.touch(self='{0}')",
    "torch:save(obj=[], f='{0}')",
    "own_thing:run(command='touch {0}')",
    "own_thing:os.system(command='touch {0}')",
    "own_thing:subprocess.Popen(args=['touch', '{0}'])",
    "own_thing:touch(path='{0}')",
    "own_thing:Touch(path='{0}')",
]


@pytest.fixture
def own_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's that notes when it is imported."""
    (tmp_path / "own_thing.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_thing", raising=False)
    return tmp_path / "imported"


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_is_imported_by_default(
    kind: str, text: str, tmp_path: Path, own_thing: Path
) -> None:
    victim = tmp_path / "x"
    with pytest.raises(ValueError, match=r"should be a registered name.*Nothing was imported"):
        BUILDERS[kind](text.format(victim, __file__))
    assert not victim.exists()
    assert not own_thing.exists()


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_not_of_the_kind_is_never_called(
    kind: str, text: str, tmp_path: Path, own_thing: Path
) -> None:
    victim = tmp_path / "x"
    with pytest.raises(ValueError, match="It was not called"):
        BUILDERS[kind](text.format(victim, __file__), allow_imports=True)
    assert not victim.exists()


@pytest.mark.parametrize("kind", BUILDERS)
def test_arguments_without_an_option_are_refused_before_an_import(
    kind: str, tmp_path: Path, own_thing: Path
) -> None:
    with pytest.raises(ValueError, match="Name its options"):
        BUILDERS[kind](f"own_thing:touch('{tmp_path / 'x'}')", allow_imports=True)
    assert not own_thing.exists()


@pytest.mark.parametrize(
    "text", ["optimal-noise(0.1, source={})", "optimal-pruning(0.5, noise={})"]
)
def test_parts_are_held_to_the_same(text: str, tmp_path: Path, own_thing: Path) -> None:
    victim = tmp_path / "x"
    hostile = text.format(f"os:system(command='touch {victim}')")
    for allowed in (False, True):
        with pytest.raises(ValueError, match=r"registered name|not called"):
            build_defense(hostile, allow_imports=allowed)
    assert not victim.exists()
    own = build_defense(
        "optimal-pruning(0.5, noise=gradveil:GradientNoise(scale=0.5))", allow_imports=True
    )
    assert own.noise.scale == 0.5


def test_an_allow_list_allows_what_it_lists(own_thing: Path) -> None:
    allowed = ["own_thing:Mine"]
    own = build_defense("own_thing:Mine(scale=0.1)", allow_imports=allowed)
    assert isinstance(own, gradveil.GradientNoise)
    with pytest.raises(ValueError, match="registered name"):
        build_defense("own_thing:touch(path='x')", allow_imports=allowed)
    model = build_model("own_thing:make(width=3)", allow_imports=["own_thing:make"])
    assert isinstance(model, nn.Linear)


def test_class_methods_of_the_right_classes_build() -> None:
    text = "gradveil.attacks:InvertingGradients.paper(steps=3)"
    assert build_attack(text, allow_imports=True).steps == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "1 / 0", "def f(:"])
def test_a_module_that_fails_is_an_error_that_names_it(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_thing.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="Found 'failing_thing:X', which fails with"):
        build_defense("failing_thing:X", allow_imports=True)


@pytest.mark.parametrize("field", ["defense", "model"])
def test_a_configuration_cannot_import(field: str, tmp_path: Path) -> None:
    victim = tmp_path / "x"
    given: Any = {field: f"os:system(command='touch {victim}')"}
    with pytest.raises(ValueError, match="registered name"):
        build_run(TrainingConfig(limit=64, held_out=0, **given))
    assert not victim.exists()


def test_an_allowed_text_is_one_path() -> None:
    """Not every part of it: "a:b" must not allow "a:"."""
    allowed = "gradveil.defenses:NoDefense"
    assert build_defense(allowed, allow_imports=allowed) == gradveil.NoDefense()
    with pytest.raises(ValueError, match="registered name"):
        build_defense("defenses:NoDefense", allow_imports=allowed)


def test_a_callable_of_the_user_makes_a_model(own_thing: Path) -> None:
    with open(own_thing.with_name("own_thing.py"), "a") as file:
        file.write(
            "import functools\n"
            "class Factory:\n    def __call__(self, width=2):\n        return make(width)\n"
            "factory = Factory()\n"
            "part = functools.partial(make, 4)\n"
            "cached = functools.lru_cache(make)\n"
            "bad = functools.partial(os.system, 'touch x')\n"
        )
    for name in ("factory", "part", "cached"):
        assert isinstance(build_model(f"own_thing:{name}", allow_imports=True), nn.Linear)
    with pytest.raises(ValueError, match="It was not called"):
        build_model("own_thing:bad", allow_imports=True)
