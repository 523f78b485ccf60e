"""Packages that only some uses need, and how to install them."""

import sys
from importlib.util import find_spec


def require(use: str, requirement: str, *modules: str) -> None:
    """Raise a `ModuleNotFoundError` that says what to install, if a module is missing.

    Args:
        use: What needs the modules, as it reads in "Install what ... needs".
        requirement: What to give to `pip install`, such as "gradveil[audit]".
        modules: Top-level modules, by the names under which they are imported.

    >>> require("the audit", "gradveil[audit]", "no_such_module")
    Traceback (most recent call last):
    ModuleNotFoundError: Found no module `no_such_module`. Install what the audit needs: pip install
    "gradveil[audit]"
    """
    for module in modules:
        if not _is_installed(module):
            raise ModuleNotFoundError(
                f"Found no module `{module}`. Install what {use} needs:"
                f' pip install "{requirement}"',
                name=module,
            )


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        spec = find_spec(module)
    except ImportError:  # something forbids to import it
        return False
    return spec is not None and spec.origin is not None  # not just a folder of that name
