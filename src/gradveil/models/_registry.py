"""Models by name, or by the import path of a user's own factory."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gradveil._checks import check_kind, check_seed, first_line
from gradveil._imports import AllowImports, check_factory, import_object
from gradveil._suggest import suggestion
from gradveil.catalog import Spec
from gradveil.models._conv_net import ConvNet
from gradveil.models._le_net import LeNet
from gradveil.models._mlp import MLP
from gradveil.models._patch_transformer import PatchTransformer
from gradveil.models._res_net import ResNet
from gradveil.models._simple_conv_net import SimpleConvNet

_MODELS: dict[str, Callable[..., Any]] = {
    "conv-net": ConvNet,
    "le-net": LeNet,
    "mlp": MLP,
    "patch-transformer": PatchTransformer,
    "res-net": ResNet,
    "simple-conv-net": SimpleConvNet,
}


def model_names() -> tuple[str, ...]:
    """The names that `build_model` knows.

    >>> model_names()
    ('conv-net', 'le-net', 'mlp', 'patch-transformer', 'res-net', 'simple-conv-net')
    """
    return tuple(sorted(_MODELS))


def build_model(
    name_or_spec: str, seed: int = 0, *, allow_imports: AllowImports = False, **options: Any
) -> nn.Module:
    """Build a model on the CPU, in eval mode, its initial weights a function of `seed` alone.

    The global random state of torch is the same before and after. A user's factory should draw its
    weights from it (as torch's layers do); randomness from elsewhere is not governed by `seed`.

    Args:
        name_or_spec: One of `model_names`, with options if need be (`conv-net(width=16)`),
            or `"package.module:factory"`: a subclass of `nn.Module`, or a Python function that
            returns one.
        seed: Seed of the initial weights.
        allow_imports: Whether import paths are allowed, whose code is then run: True for text of
            the local user's own, or the paths that are allowed.
        options: Passed on to the model's class or factory; they go before those in the text.

    >>> import torch
    >>> model = build_model("mlp(sizes=[4, 8, 3])", seed=1)
    >>> same = build_model("gradveil.models:MLP", seed=1, allow_imports=True, sizes=[4, 8, 3])
    >>> torch.equal(model.layers[1].weight, same.layers[1].weight)
    True
    """
    check_kind(name_or_spec, "name_or_spec", str, "Use for example 'mlp'.")
    check_seed(seed)
    spec = Spec.parse(name_or_spec, "model")
    factory = _find_factory(spec.name, allow_imports)
    _check_plain(spec)
    positional, options = spec.positional, {**spec.options, **options}
    _check_options(spec.name, factory, positional, options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # CPU only; torch.manual_seed seeds GPUs too
        model = _built(spec.name, factory, positional, options)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"Parameter `name_or_spec` should name a factory that returns a `torch.nn.Module`. "
            f"Found that `{name_or_spec}` returns a `{type(model).__name__}`. Return the model."
        )
    if any(weight.is_meta for weight in model.parameters()):
        raise ValueError(
            f"Parameter `name_or_spec` should name a factory of a model with numbers in it. Found "
            f"that `{name_or_spec}` returns one on the device meta. Leave the device out."
        )
    return model.eval()


def model_options(name: str) -> tuple[str, ...]:
    """The options of a registered model.

    >>> model_options("mlp")
    ('sizes', 'activation')
    """
    return tuple(inspect.signature(_MODELS[name]).parameters)


def _built(
    name: str, factory: Callable[..., Any], positional: list[Any], options: dict[str, Any]
) -> Any:
    """What the factory returns; whatever a user's factory raises is one clear error."""
    if ":" not in name:
        return factory(*positional, **options)
    try:
        return factory(*positional, **options)
    except (Exception, SystemExit) as error:
        raise ValueError(
            "Parameter `name_or_spec` should name a factory that returns a model. Found that"
            f" {name!r} fails with `{first_line(error)}`. Call it in Python to see where."
        ) from error


def _find_factory(name: str, allow_imports: AllowImports) -> Callable[..., Any]:
    if name in _MODELS:
        return _MODELS[name]
    if ":" in name:
        factory: Callable[..., Any] = import_object(name, "model", allow_imports, "factory")
        check_factory(factory, name, "model", nn.Module)
        return factory
    raise ValueError(
        f"Parameter `name_or_spec` should be one of {', '.join(model_names())}, or "
        f"'package.module:factory' for your own model. Found {name!r}."
        f"{suggestion(name, _MODELS) or ' Choose one of these.'}"
    )


def _check_plain(spec: Spec) -> None:
    for value in spec.arguments.values():
        if isinstance(value, Spec):
            raise ValueError(
                f"Parameter `name_or_spec` should have plain values as options. Found `{value}` in"
                f" `{spec}`. Put words into quotes."
            )


def _check_options(
    name: str, factory: Callable[..., Any], positional: list[Any], options: dict[str, Any]
) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # built in C, say: calling it will tell
    try:
        signature.bind(*positional, **options)
    except TypeError as error:
        given = f"{options!r}" if not positional else f"{positional!r} and {options!r}"
        raise ValueError(
            f"Parameter `options` should fit `{name}{signature}`. Found {given}: {error}. "
            f"Pass what this signature asks for."
        ) from error
