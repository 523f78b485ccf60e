"""The entry point, which runs without the command line's own packages."""

import json
import sys

from gradveil._extras import require

_NEED_AUDIT = ("audit",)
"""Commands that need more than the command line's own packages."""


def main() -> None:
    """Run the command line, or say in one line what to install for it."""
    try:
        _require_command_line(sys.argv[1:])
    except ModuleNotFoundError as error:
        report_error(error)
        raise SystemExit(2) from None
    from ._app import run

    run()


def _require_command_line(arguments: list[str]) -> None:
    """Name the extra of the command that was asked for, so that one install is enough."""
    command = arguments[0] if arguments else ""
    if command in _NEED_AUDIT:
        require(f"gradveil {command}", "gradveil[audit]", "typer", "rich")
    require("the command line", "gradveil[cli]", "typer", "rich")


def report_error(error: Exception) -> None:
    """One line on stderr; with `--format json` an object on stdout, too."""
    line = " ".join(str(error).split())
    if ("json" in sys.argv and "--format" in sys.argv) or "--format=json" in sys.argv:
        print(json.dumps({"error": line, "kind": type(error).__name__}))
    print(f"gradveil: {line}", file=sys.stderr)
