from pathlib import Path

import pytest
import torch
from torch import nn

from gradveil.catalog._entries import MODELS
from gradveil.models import MLP, ConvNet, SimpleConvNet, build_model

OWN_MODULE = """
import torch
from torch import nn

not_callable = 3

def factory(width=2):
    torch.manual_seed(7)
    return nn.Linear(width, 1)

def no_model():
    return "model"

class Nested:
    make = staticmethod(lambda: nn.Linear(1, 1))
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "gradveil_users_module.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "gradveil_users_module"


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("simple-conv-net", SimpleConvNet, {"num_classes": 4}),
        ("conv-net", ConvNet, {"width": 2}),
        ("mlp", MLP, {"sizes": [4, 3]}),
    ],
)
def test_known_names(name: str, kind: type[nn.Module], options: dict[str, object]) -> None:
    model = build_model(name, **options)
    assert isinstance(model, kind)
    assert not any(module.training for module in model.modules())
    assert_same_weights(model, build_model(name, **options))


def test_names_are_complete() -> None:
    names = ("conv-net", "mlp", "patch-transformer", "res-net", "simple-conv-net")
    assert tuple(MODELS) == names


def test_seed_decides_the_weights() -> None:
    first, second = (build_model("mlp", seed, sizes=[4, 3]) for seed in (0, 1))
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


def test_seed_is_torchs() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = MLP([4, 3])
    assert_same_weights(build_model("mlp", 3, sizes=[4, 3]), expected)


@pytest.mark.parametrize("attribute", ["factory", "no_model"])
def test_leaves_the_global_random_state_untouched(own_module: str, attribute: str) -> None:
    before = torch.get_rng_state()
    try:
        build_model(f"{own_module}:{attribute}", allow_imports=True)
    except ValueError:
        assert attribute == "no_model"
    assert torch.equal(torch.get_rng_state(), before)


def test_own_factory(own_module: str) -> None:
    model = build_model(f"{own_module}:factory", allow_imports=True, width=5)
    assert next(model.parameters()).shape == (1, 5)
    assert not model.training


def test_own_nested_factory(own_module: str) -> None:
    assert isinstance(build_model(f"{own_module}:Nested.make", allow_imports=True), nn.Linear)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("simple-convnet", "simple-conv-net"),
        ("ConvNet", "conv-net"),
        ("conv_net", "conv-net"),
        ("MLP", "mlp"),
    ],
)
def test_unknown_name_lists_what_exists_and_the_nearest(name: str, nearest: str) -> None:
    message = f"{', '.join(MODELS)}.*Found `{name}`.*Did you mean `{nearest}`"
    with pytest.raises(ValueError, match=message):
        build_model(name)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("missing", "AttributeError"),
        ("", "AttributeError"),
        ("not_callable", "or a Python function of yours.*a int"),
        ("no_model", "a Python function of yours that returns one.*gives a str"),
    ],
)
def test_refuses_factories(own_module: str, attribute: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(f"{own_module}:{attribute}", allow_imports=True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no.such.module:factory", "should be 'package.module:name'.*PYTHONPATH"),
        (":factory", "A model should read `name`"),
        (".relative:factory", "A model should read `name`"),
    ],
)
def test_refuses_modules(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(spec, allow_imports=True)


def test_refuses_options_that_do_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"`mlp` should fit \(sizes.*activation.*unexpected.*'width'"
    ):
        build_model("mlp", sizes=[4, 3], width=3)


def test_refuses_missing_options() -> None:
    with pytest.raises(ValueError, match=r"`mlp` should fit \(sizes.*Found {}: missing.*'sizes'"):
        build_model("mlp")
