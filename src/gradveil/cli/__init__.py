"""The command line: one file for each command."""

from typing import Any

from ._main import main

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """The app needs typer; `main` says so where it is missing."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._app import app

    return app
