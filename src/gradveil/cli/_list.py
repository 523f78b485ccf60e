"""`gradveil list`: everything that has a name."""

import inspect
import json

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradveil.catalog import ATTACKS, DEFENSES, ESTIMATORS, MODELS, Entry, parameters_of

from ._options import AsFormat

SOURCES = {
    "mnist": ("5,000 real MNIST images, embedded.", "LeCun et al. 1998"),
    "cifar10": ("The first 20 CIFAR-10 test images, embedded.", "Krizhevsky 2009"),
    "FILE.npz": ("Your own: images and labels, or inputs and targets, or x and y.", ""),
    "FOLDER": ("MNIST's or CIFAR-10's official files.", ""),
    "hf:NAME": ("From the Hugging Face hub, where installed.", "Lhoest et al. 2021"),
}
"""Of data, and what they are."""


def list_names(format: AsFormat = "table") -> None:
    """List data sets, models, defenses with their parameters, attacks and estimators."""
    groups = {
        "data sets": [{"name": n, "summary": s, "reference": r} for n, (s, r) in SOURCES.items()],
        "models": [_row(entry) for entry in MODELS.values()],
        "defenses": [_row(entry) for entry in DEFENSES.values()],
        "attacks": [_row(entry) for entry in ATTACKS.values()],
        "estimators": [_row(entry) for entry in ESTIMATORS.values()],
    }
    if format == "json":
        print(json.dumps(groups, indent=1, ensure_ascii=False))
        return
    console = Console()
    for group, rows in groups.items():
        table = Table(title=group, title_justify="left", show_lines=False)
        for column in ("name", "what it is", "reference"):
            table.add_column(column, no_wrap=column == "name")
        for row in rows:
            takes = f"\n[dim]{escape(row['parameters'])}[/]" if row.get("parameters") else ""
            table.add_row(row["name"], escape(row["summary"]) + takes, escape(row["reference"]))
        console.print(table)


def _row(entry: Entry) -> dict[str, str]:
    return {
        "name": entry.name,
        "summary": entry.summary or (inspect.getdoc(entry.build) or "").splitlines()[0],
        "reference": entry.reference,
        "parameters": parameters_of(entry.build),
    }
