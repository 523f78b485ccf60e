"""Imports of objects by path, `package.module:name`, refused unless the user allows them.

Importing a module runs its code, and so does calling what is in it. Text that comes from elsewhere
(a run's configuration, a message, a file) must therefore never get here with `allow_imports`.
"""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any, get_type_hints

AllowImports = bool | Collection[str]
"""True: everything that the local user names. Otherwise the import paths that are allowed."""

_NOT_FACTORIES = {*sys.stdlib_module_names, "torch", "numpy"}
"""Packages whose functions build nothing of a user's, but start programs and write files."""


def import_object(path: str, what: str, allow_imports: AllowImports, name: str = "Class") -> Any:
    """What `package.module:name` names, if that is allowed; it is not called.

    Args:
        path: The import path.
        what: What it is for, as "defense".
        allow_imports: Whether imports are allowed, or which.
        name: What the part behind the colon should be, for error messages.
    """
    _check_allowed(path, what, allow_imports)
    module, _, attributes = path.partition(":")
    try:
        return functools.reduce(getattr, attributes.split("."), import_module(module))
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ValueError(
            f"A {what} of your own should be 'package.module:{name}', importable from here. Found"
            f" {path!r}, which fails with `{type(error).__name__}: {error}`. Check the spelling,"
            " and that the module is installed or on PYTHONPATH."
        ) from error


def check_factory(factory: Any, path: str, what: str, result: type) -> None:
    """Require a class or a function that may be called to make a `result`.

    A class should be a subclass of `result`. A function should be written in Python, outside of
    the standard library and torch, and its return type, where it states one, a `result`: so
    `os:system` is refused before it is called.
    """
    if not callable(factory):
        raise ValueError(
            f"A {what} of your own should name a class or function. Found that {path!r} is a"
            f" `{type(factory).__name__}`. Name what builds it."
        )
    if isinstance(factory, type):
        fits = issubclass(factory, result)
    else:
        fits = _is_of_a_user(factory) and _may_return(factory, result)
    if not fits:
        raise ValueError(
            f"A {what} of your own should be a subclass of `{result.__name__}`, or a Python"
            f" function of yours that returns one. Found {path!r}, which is"
            f" {_description(factory)}. It was not called."
        )


def check_function(function: Any, path: str, what: str) -> None:
    """Require a Python function outside of the standard library and torch."""
    if isinstance(function, type) or not _is_of_a_user(function):
        raise ValueError(
            f"A {what} of your own should be a Python function of yours. Found {path!r}, which is"
            f" {_description(function)}. It was not called."
        )


def check_class(
    imported: Any, path: str, what: str, fits: Callable[[type], bool], wanted: str
) -> Any:
    """Require a class that fits, or a class method of one (`Class.preset`)."""
    owner = imported if isinstance(imported, type) else getattr(imported, "__self__", None)
    if not isinstance(owner, type) or not fits(owner):
        raise ValueError(
            f"A {what} of your own should be {wanted}. Found {path!r}, which is"
            f" {_description(imported)}. It was not called."
        )
    return imported


def takes(kind: type, count: int) -> bool:
    """Whether instances of a class, written in Python, can be called with so many arguments."""
    call = inspect.getattr_static(kind, "__call__", None)
    if not inspect.isfunction(call):
        return False
    try:
        inspect.signature(call).bind(*[None] * (1 + count))
    except TypeError:
        return False
    return True


def _check_allowed(path: str, what: str, allow_imports: AllowImports) -> None:
    if isinstance(allow_imports, str):  # in which every part of the text would be found
        allow_imports = [allow_imports]
    if allow_imports is True or (allow_imports is not False and path in allow_imports):
        return
    raise ValueError(
        f"A {what} should be a registered name. Found the import path {path!r}, which would run"
        " code. If the text is your own, pass `allow_imports=True`, or the paths that you allow;"
        " the command line does. Nothing was imported."
    )


def _is_of_a_user(imported: Any) -> bool:
    """Whether it is a Python function that the standard library and torch do not define."""
    while isinstance(imported, functools.partial):
        imported = imported.func
    if isinstance(imported, type):
        return str(imported.__module__).partition(".")[0] not in _NOT_FACTORIES
    function = inspect.unwrap(getattr(imported, "__func__", imported))
    if not isinstance(function, (types.FunctionType, types.BuiltinFunctionType)):
        function = inspect.getattr_static(type(function), "__call__", None)
    is_python = isinstance(function, types.FunctionType)
    return is_python and str(function.__module__).partition(".")[0] not in _NOT_FACTORIES


def _may_return(factory: Any, result: type) -> bool:
    try:
        stated = get_type_hints(factory).get("return", result)
    except Exception:  # a hint that cannot be read says nothing
        return True
    return not isinstance(stated, type) or issubclass(stated, result) or stated is object


def _description(imported: Any) -> str:
    home = getattr(imported, "__module__", None)
    name = getattr(imported, "__qualname__", None)
    kind = type(imported).__name__
    return f"`{home}.{name}`, a {kind}" if home and name else f"a {kind}"
