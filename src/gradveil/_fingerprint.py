"""What tensors, functions and objects are and hold, for fingerprints that last from run to run."""

import functools
import hashlib
import inspect
import types
from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None))
PARTS: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    types.MethodType: ("__func__", "__self__"),
    types.CodeType: ("co_code", "co_names", "co_consts"),
}
"""What is read of objects that Python makes."""
OTHERS = ("gradveil", "torch", "builtins", "numpy", "functools", "collections", "abc", "typing")
"""Packages whose code is not read: their names stand for it, and the version of the cells."""


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's numbers, with its type and shape."""
    plain = tensor.detach().cpu().contiguous()
    head = f"{plain.dtype} {tuple(plain.shape)} ".encode()
    data = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return hashlib.sha256(head + data).hexdigest()


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
    name, package = f"{thing.__module__}.{thing.__qualname__}", str(thing.__module__).split(".")[0]
    held = [_content(cell) for cell in thing.__closure__ or ()]
    own = [inner(thing.__defaults__), inner(thing.__kwdefaults__), inner(held)]
    if package in OTHERS:
        return [name, *own]
    code, known = thing.__code__, thing.__globals__
    used = {key: known[key] for key in sorted({*code.co_names} & known.keys())}
    values = [[key, inner(v)] for key, v in used.items() if not isinstance(v, types.ModuleType)]
    return [name, *own, inner(code), *values]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return "nothing"


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
