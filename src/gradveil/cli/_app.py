"""The `gradveil` command and its subcommands."""

import sys

import typer

from ._audit import audit
from ._bench import bench

app = typer.Typer(
    name="gradveil",
    help="Optimal, parameter-specific defenses for the gradients that federated clients share.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(audit)
app.add_typer(bench, name="bench")


def main() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 2."""
    try:
        app()
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        print(f"gradveil: {error}", file=sys.stderr)
        raise SystemExit(2) from None
