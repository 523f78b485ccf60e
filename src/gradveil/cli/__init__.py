"""The command line: one file for each command."""

from typing import TYPE_CHECKING

from gradveil._lazy import lazy_attributes

from ._main import main

if TYPE_CHECKING:
    from ._app import app

__all__ = ["app", "main"]

if not TYPE_CHECKING:  # the app needs typer; `main` says so where it is missing
    __getattr__ = lazy_attributes(__name__, {"app": "_app"})
