"""Models by name, or by the import path of a user's own factory."""

import inspect
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any

import torch
from torch import nn

from gradveil._checks import check_kind, check_seed, first_line
from gradveil._suggest import suggestion
from gradveil.models._conv_net import ConvNet
from gradveil.models._le_net import LeNet
from gradveil.models._mlp import MLP
from gradveil.models._patch_transformer import PatchTransformer
from gradveil.models._simple_conv_net import SimpleConvNet

_MODELS: dict[str, Callable[..., Any]] = {
    "conv-net": ConvNet,
    "le-net": LeNet,
    "mlp": MLP,
    "patch-transformer": PatchTransformer,
    "simple-conv-net": SimpleConvNet,
}


def model_names() -> tuple[str, ...]:
    """The names that :func:`build_model` knows.

    >>> model_names()
    ('conv-net', 'le-net', 'mlp', 'patch-transformer', 'simple-conv-net')
    """
    return tuple(sorted(_MODELS))


def build_model(name_or_spec: str, seed: int = 0, **options: Any) -> nn.Module:
    """Build a model on the CPU, in eval mode, its initial weights a function of ``seed`` alone.

    The global random state of torch is the same before and after. A user's factory should draw its
    weights from it (as torch's layers do); randomness from elsewhere is not governed by ``seed``.

    :param name_or_spec: One of :func:`model_names`, or ``"package.module:factory"``, where
        ``factory`` is a class or function that returns an ``nn.Module``.
    :param seed: Seed of the initial weights.
    :param options: Passed on to the model's class or factory.

    >>> import torch
    >>> model = build_model("mlp", seed=1, sizes=[4, 8, 3])
    >>> same = build_model("gradveil.models:MLP", seed=1, sizes=[4, 8, 3])
    >>> torch.equal(model.layers[1].weight, same.layers[1].weight)
    True
    """
    check_kind(name_or_spec, "name_or_spec", str, "Use for example 'mlp'.")
    check_seed(seed)
    factory = _find_factory(name_or_spec)
    _check_options(name_or_spec, factory, options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # CPU only; torch.manual_seed seeds GPUs too
        model = _built(name_or_spec, factory, options)
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


def _built(spec: str, factory: Callable[..., Any], options: dict[str, Any]) -> Any:
    """What the factory returns; whatever a user's factory raises is one clear error."""
    if ":" not in spec:
        return factory(**options)
    try:
        return factory(**options)
    except (Exception, SystemExit) as error:
        raise ValueError(
            "Parameter `name_or_spec` should name a factory that returns a model. Found that"
            f" {spec!r} fails with `{first_line(error)}`. Call it in Python to see where."
        ) from error


def _find_factory(spec: str) -> Callable[..., Any]:
    if spec in _MODELS:
        return _MODELS[spec]
    if ":" in spec:
        return _import_factory(spec)
    raise ValueError(
        f"Parameter `name_or_spec` should be one of {', '.join(model_names())}, or "
        f"'package.module:factory' for your own model. Found {spec!r}."
        f"{suggestion(spec, _MODELS) or ' Choose one of these.'}"
    )


def _import_factory(spec: str) -> Callable[..., Any]:
    module_name, _, attributes = spec.partition(":")
    try:
        factory = reduce(getattr, attributes.split("."), import_module(module_name))
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"Parameter `name_or_spec` should be 'package.module:factory', importable from here. "
            f"Found {spec!r}, which fails with `{type(error).__name__}: {error}`. Check the "
            f"spelling, and that the module is installed or on PYTHONPATH."
        ) from error
    if not callable(factory):
        raise ValueError(
            f"Parameter `name_or_spec` should name a class or function. Found that {spec!r} is a "
            f"`{type(factory).__name__}`. Name what builds the model."
        )
    return factory


def _check_options(spec: str, factory: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # built in C, say: calling it will tell
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ValueError(
            f"Parameter `options` should fit `{spec}{signature}`. Found {options!r}: {error}. "
            f"Pass what this signature asks for."
        ) from error
