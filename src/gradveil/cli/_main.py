"""The entry point, which runs without the command line's own packages."""

import json
import sys

from gradveil._extras import require


def main() -> None:
    """Run the command line, or say in one line what to install for it."""
    try:
        require("the command line", "gradveil[cli]", "typer", "rich")
    except ModuleNotFoundError as error:
        report_error(error)
        raise SystemExit(2) from None
    from ._app import run

    run()


def report_error(error: Exception) -> None:
    """One line on stderr; with `--format json` an object on stdout, too."""
    line = " ".join(str(error).split())
    if ("json" in sys.argv and "--format" in sys.argv) or "--format=json" in sys.argv:
        print(json.dumps({"error": line, "kind": type(error).__name__}))
    print(f"gradveil: {line}", file=sys.stderr)
