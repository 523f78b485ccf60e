"""All that a model or a loss depends on, as one hash."""

import functools
import hashlib
import inspect
import json
import types
from typing import Any

from torch import Tensor

from gradveil.federated import digest

from .._subject import Audited


def fingerprint(subject: Audited) -> str:
    """SHA-256 of model, loss, data and public examples, and of the user's own code in them."""
    content = {
        "model": subject.model,
        "loss": subject.loss_fn,
        "data": [subject.data.inputs, subject.data.targets, subject.data.mean, subject.data.std],
        "public": subject.public,
        "batch_size": subject.batch_size,
        "local": subject.local,
        "layout": subject.data.layout,
        "others": [subject.range_is_public, subject.prior],
    }
    return hashlib.sha256(json.dumps(state_of(content)).encode()).hexdigest()


PLAIN = (bool, int, float, complex, str, bytes, type(None))
PARTS: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
    types.CodeType: ("co_code", "co_names", "co_consts"),
}
"""What is read of objects that Python makes."""
OTHERS = ("gradveil", "torch", "builtins", "numpy", "functools", "collections", "abc", "typing")
"""Packages whose code is not read: their names stand for it, and the version of the cells."""


def state_of(thing: Any, seen: tuple[int, ...] = ()) -> Any:
    """What an object is and holds, all the way down: code, closures, defaults, private attributes.

    Objects that hold themselves are followed once. What has no attributes is its representation.

    >>> def scaled(factor):
    ...     return lambda x: factor * x
    >>> state_of(scaled(1)) == state_of(scaled(1)), state_of(scaled(1)) == state_of(scaled(2))
    (True, False)
    """
    if isinstance(thing, Tensor):
        return digest(thing)
    if isinstance(thing, PLAIN):
        return repr(thing)
    if id(thing) in seen:
        return "itself"
    inner = functools.partial(state_of, seen=(*seen, id(thing)))
    if isinstance(thing, (list, tuple)):
        return [inner(part) for part in thing]
    if isinstance(thing, (set, frozenset)):
        return sorted(repr(inner(part)) for part in thing)
    if isinstance(thing, dict):
        return [[repr(key), inner(part)] for key, part in thing.items()]
    if isinstance(thing, types.FunctionType):
        return _function(thing, inner)
    if isinstance(thing, type):
        return [f"{thing.__module__}.{thing.__qualname__}", _sources(thing)]
    if type(thing) in PARTS:
        return [type(thing).__name__, *(inner(getattr(thing, p)) for p in PARTS[type(thing)])]
    if hasattr(thing, "__dict__"):
        return [inner(type(thing)), inner(dict(sorted(vars(thing).items())))]
    text = repr(thing)
    return [inner(type(thing)), "" if " at 0x" in text else text]


def _function(thing: types.FunctionType, inner: Any) -> list[Any]:
    """Its name, defaults and closure; of the user's own functions the code and globals, too."""
    name, package = f"{thing.__module__}.{thing.__qualname__}", thing.__module__.split(".")[0]
    closure = inspect.getclosurevars(thing)
    own = [inner(thing.__defaults__), inner(thing.__kwdefaults__), inner(dict(closure.nonlocals))]
    if package in OTHERS:
        return [name, *own]
    used = sorted(closure.globals.items())
    values = [[key, inner(v)] for key, v in used if not isinstance(v, types.ModuleType)]
    return [name, *own, inner(thing.__code__), *values]


def _sources(kind: type) -> list[str]:
    """The sources of a class and of its bases, where they are the user's."""
    found = []
    for each in kind.__mro__:
        package = each.__module__.split(".")[0]
        if package not in OTHERS:
            try:
                found.append(inspect.getsource(each))
            except (OSError, TypeError):
                found.append(each.__qualname__)
    return found
