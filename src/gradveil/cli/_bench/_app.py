"""The group `gradveil bench`."""

import typer

bench = typer.Typer(help="Measure costs and qualities side by side.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Measure costs and qualities side by side."""
