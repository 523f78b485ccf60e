"""What all benchmarks print and keep."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from gradveil._files import write_atomically
from gradveil.scoring import Interval

Out = Annotated[Path | None, typer.Option(help="Folder for rows as JSON, and for charts.")]


def tell(what: str) -> None:
    """A line on stderr."""
    Console(stderr=True).print(what, highlight=False)


def report(
    rows: Sequence[Any], name: str, out: Path | None, columns: Sequence[str] | None = None
) -> None:
    """Print the rows, or these columns of them, and keep all as `name`.json in the folder."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        state = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        text = json.dumps({**state, "rows": [dataclasses.asdict(r) for r in rows]}, indent=1)
        write_atomically(out / f"{name}.json", text)
    names = columns or [field.name for field in dataclasses.fields(rows[0])]
    table = Table()
    for column in names:
        justify = "left" if column == names[0] else "right"
        table.add_column(column.replace("_", " "), justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*[_cell(getattr(row, column)) for column in names])
    Console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, Interval):
        return f"{value.mean:.1f} [{value.low:.1f}, {value.high:.1f}]"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
