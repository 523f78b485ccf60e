"""The `gradveil` command and its subcommands."""

import sys
from typing import Annotated

import typer

from . import report_error
from ._audit import run_audit
from ._bound import bound
from ._list import list_names
from ._options import USER_ERRORS, check_values_given
from ._train import train


def _version(asked: bool) -> None:
    if asked:
        from gradveil import __version__

        print(f"gradveil {__version__}")
        raise typer.Exit()


app = typer.Typer(
    name="gradveil",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Optimal, parameter-specific defenses for the gradients that federated clients share."""


app.command("audit")(run_audit)
app.command()(bound)
app.command("list")(list_names)
app.command()(train)


def run() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 2."""
    try:
        check_values_given(sys.argv[1:])
        app()
    except USER_ERRORS as error:
        report_error(error)
        raise SystemExit(2) from None
