"""The command line: one file for each command."""

import itertools
import json
import sys
from typing import Any

from gradveil._imports import require

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """The app needs typer; `main` says so where it is missing."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._app import app

    return app


def main() -> None:
    """Run the command line, or say in one line what to install for it."""
    extra = "audit" if sys.argv[1:2] == ["audit"] else "cli"  # one install is enough
    use = "gradveil audit" if extra == "audit" else "the command line"
    try:
        require(use, f"gradveil[{extra}]", "typer", "rich")
    except ModuleNotFoundError as error:
        report_error(error)
        raise SystemExit(2) from None
    from ._app import run

    run()


def report_error(error: Exception) -> None:
    """One line on stderr; with `--format json` an object on stdout, too."""
    line = " ".join(str(error).split())
    words = sys.argv  # typer, which knows them better, may be missing
    if "--format=json" in words or ("--format", "json") in itertools.pairwise(words):
        about = {"kind": type(error).__name__, "argument": getattr(error, "argument", None)}
        print(json.dumps({"error": line, **about}))
    print(f"gradveil: {line}", file=sys.stderr)
