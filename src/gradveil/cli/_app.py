"""The `gradveil` command and its subcommands."""

import typer

from ._audit import run_audit
from ._bench import bench
from ._bound import bound
from ._list import list_names
from ._main import report_error
from ._reproduce import reproduce
from ._train import train

app = typer.Typer(
    name="gradveil",
    help="Optimal, parameter-specific defenses for the gradients that federated clients share.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("audit")(run_audit)
app.command()(bound)
app.command("list")(list_names)
app.command()(reproduce)
app.command()(train)
app.add_typer(bench, name="bench")


def run() -> None:
    """Run the command line; a mistake of the user's is one line and exit code 2."""
    try:
        app()
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        report_error(error)
        raise SystemExit(2) from None
