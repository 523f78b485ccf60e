"""Packages that only some uses need; and imports of objects by path, `package.module:name`.

Importing a module runs its code, and so does calling what is in it. Text that comes from elsewhere
(a run's configuration, a message, a file) must therefore never get here with `allow_imports`.
"""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection
from importlib import import_module
from importlib.util import find_spec
from typing import Any, get_type_hints

from ._checks import WrongValue, first_line

AllowImports = bool | Collection[str]
"""True: everything that the local user names. Otherwise the import paths that are allowed."""

_NOT_FACTORIES = {*sys.stdlib_module_names, "torch", "numpy"}
"""Packages whose functions build nothing of a user's, but start programs and write files."""


def require(use: str, requirement: str, *modules: str) -> None:
    """Raise a `ModuleNotFoundError` that says what to install, if a module is missing.

    Args:
        use: What needs the modules, as it reads in "Install what ... needs".
        requirement: What to give to `pip install`, such as "gradveil[audit]".
        modules: Top-level modules, by the names under which they are imported.
    """
    for module in modules:
        if not _is_installed(module):
            install = f'Install what {use} needs: pip install "{requirement}"'
            raise ModuleNotFoundError(f"Found no module `{module}`. {install}", name=module)


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        spec = find_spec(module)
    except ImportError:  # something forbids to import it
        return False
    return spec is not None and spec.origin is not None  # not just a folder of that name


def imported(
    path: str,
    what: str,
    allow_imports: AllowImports,
    fits: Callable[[Any], bool],
    wanted: str,
) -> Any:
    """What `package.module:name` names, if that is allowed; it is not called, so neither is
    `os:system`, which does not fit.

    Args:
        path: The import path.
        what: What it is for, as "defense".
        allow_imports: Whether imports are allowed, or which.
        fits, wanted: Whether what was found is of the kind that is wanted, and that kind in words.
    """
    if isinstance(allow_imports, str):  # in which every part of the text would be found
        allow_imports = [allow_imports]
    if allow_imports is not True and (allow_imports is False or path not in allow_imports):
        advice = (
            "If the text is your own, pass `allow_imports=True`, or the paths that you allow; the"
            " command line does. Nothing was imported."
        )
        shown = f"the import path {path!r}, which would run code"
        raise WrongValue(f"A {what}", "be a registered name", shown, advice)
    own = f"A {what} of your own"
    module, _, attributes = path.partition(":")
    try:
        found = functools.reduce(getattr, attributes.split("."), import_module(module))
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        expected = "be 'package.module:name', importable from here"
        shown = f"{path!r}, which fails with `{first_line(error)}`"
        advice = "Check the spelling, and that the module is installed or on PYTHONPATH."
        raise WrongValue(own, expected, shown, advice) from error
    if not fits(found):
        shown = f"{path!r}, which is a {type(found).__name__}. It was not called"
        raise WrongValue(own, f"be {wanted}", shown)
    return found


def makes(result: type) -> Callable[[Any], bool]:
    """Whether something may be called to make a `result`: a subclass, or a function of a user's.

    A function should be written in Python, outside of the standard library and torch, and its
    return type, where it states one, a `result`.
    """

    def fits(factory: Any) -> bool:
        if isinstance(factory, type):
            return issubclass(factory, result)
        if not callable(factory) or not is_of_a_user(factory):
            return False
        try:
            stated = get_type_hints(factory).get("return", result)
        except Exception:  # a hint that cannot be read says nothing
            return True
        return not isinstance(stated, type) or issubclass(stated, result) or stated is object

    return fits


def owned_by(fits: Callable[[type], bool]) -> Callable[[Any], bool]:
    """Whether something is a class that fits, or a class method of one (`Class.preset`)."""

    def whole(found: Any) -> bool:
        owner = found if isinstance(found, type) else getattr(found, "__self__", None)
        return isinstance(owner, type) and fits(owner)

    return whole


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


def is_of_a_user(found: Any) -> bool:
    """Whether it is a Python function that the standard library and torch do not define."""
    while isinstance(found, functools.partial):
        found = found.func
    if isinstance(found, type):
        return str(found.__module__).partition(".")[0] not in _NOT_FACTORIES
    function = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(function, (types.FunctionType, types.BuiltinFunctionType)):
        function = inspect.getattr_static(type(function), "__call__", None)
    is_python = isinstance(function, types.FunctionType)
    return is_python and str(function.__module__).partition(".")[0] not in _NOT_FACTORIES
