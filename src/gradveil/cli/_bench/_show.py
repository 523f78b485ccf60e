"""What all benchmarks check and print."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from gradveil._checks import check_count
from gradveil._extras import require
from gradveil._files import write_atomically

from .._format import Format
from .._options import option, own_options

if TYPE_CHECKING:
    from gradveil.data import Dataset


def check_options(out: Path | None, **counts: int) -> None:
    """Require counts of at least 1, and a folder that can be written."""
    from gradveil.auditing.report import check_folder

    for name, count in counts.items():
        check_count(count, own_options(name)[name])
    if out is not None:
        with option("--out", "out"):
            check_folder(out)


def digits(source: str, needed: int, name: str) -> "Dataset":
    """Images of MNIST's size, enough of them."""
    from gradveil.data import load_dataset

    with option("--mnist", "source"):
        data = load_dataset(source)
        if data.inputs.shape[1:] != (1, 28, 28):
            raise ValueError(
                "Parameter `source` should hold images of shape (1, 28, 28). Found"
                f" {tuple(data.inputs.shape[1:])}."
            )
    if needed > len(data):
        raise ValueError(
            f"Option `{name}` should need at most the {len(data)} images of `{data.name}`. Found"
            f" that {needed} are needed."
        )
    return data


def require_chart(out: Path | None) -> None:
    if out is not None:
        require("the chart in --out", "gradveil[audit]", "matplotlib")


def report(
    rows: list,  # type: ignore[type-arg]
    kind: type,
    name: str,
    out: Path | None,
    format: Format,
    columns: list[str] | None = None,
) -> None:
    """Print the rows, or these columns of them, and keep all as `name`.json in the folder."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / f"{name}.json", as_json(rows))
    if format is Format.json:
        print(as_json(rows))
    else:
        Console().print(table_of(rows, columns or [f.name for f in dataclasses.fields(kind)]))


def as_json(rows: list) -> str:  # type: ignore[type-arg]
    return json.dumps(
        {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "rows": [dataclasses.asdict(row) for row in rows],
        },
        indent=1,
    )


def table_of(rows: list, columns: list[str]) -> Table:  # type: ignore[type-arg]
    table = Table()
    for column in columns:
        table.add_column(
            column.replace("_", " "), justify="left" if column in columns[:1] else "right"
        )
    for row in rows:
        table.add_row(*[_cell(getattr(row, column)) for column in columns])
    return table


def line_of(row: object) -> str:
    """A row on one line."""
    return ", ".join(
        f"{field.name.replace('_', ' ')} {_cell(getattr(row, field.name))}"
        for field in dataclasses.fields(row)  # type: ignore[arg-type]
    )


def _cell(value: object) -> str:
    from gradveil.scoring import Interval

    if value is None:
        return "-"
    if isinstance(value, Interval):
        return f"{value.mean:.1f} [{value.low:.1f}, {value.high:.1f}]"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
