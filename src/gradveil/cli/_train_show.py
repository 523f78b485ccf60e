"""The results of `gradveil train` as a table, as JSON and as a picture."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ._format import Format

if TYPE_CHECKING:
    from gradveil.federated import TrainingHistory


def draw(history: "TrainingHistory", out: Path) -> None:
    """The curves of a run, as a picture in its folder."""
    from gradveil.federated import draw_curves

    draw_curves({history.config["defense"]: history}, out / "curves.png")


def show(history: "TrainingHistory", out: Path | None, format: Format) -> None:
    """A table of some rounds and what they add up to, or everything as JSON."""
    if format is Format.json:
        print(json.dumps(dataclasses.asdict(history)))
        return
    names = ["round", "loss", "held_out_loss", "accuracy", "utility_first", "utility_second"]
    if history.privacy is not None:
        names.append("epsilon")
    table = Table(title=escape(f"{history.config['defense']}: {history.config['data']}"))
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    every = max(1, len(history.rounds) // 10)
    for row in history.rounds:
        if row.round % every == 0 or row.round == len(history.rounds):
            table.add_row(*[_cell(getattr(row, name)) for name in names])
    Console().print(table)
    print(_summary(history))
    for line in _privacy(history):
        print(line)
    if out is not None:
        print(f"Results, curves and weights are in {out}.")


def _summary(history: "TrainingHistory") -> str:
    sent = sum(row.bytes_sent for row in history.rounds)
    text = f"{len(history.rounds)} rounds, {sent / 1e6:.1f} MB sent by clients"
    gradient = sum(row.seconds_gradient or 0.0 for row in history.rounds)
    defense = sum(row.seconds_defense or 0.0 for row in history.rounds)
    if gradient:
        text += f", {gradient:.1f} s of gradients, {defense:.1f} s of defense"
    if history.skipped:
        text += f"; clients were skipped {history.skipped} times"
    return text + "."


def _privacy(history: "TrainingHistory") -> list[str]:
    """What the account says, why the run ended, and what a seed means."""
    from gradveil.federated import SEEDED, privacy_statement

    lines = [privacy_statement(history), history.stopped]
    if not history.config["secure"]:
        lines.append(SEEDED)
    return [line for line in lines if line is not None]


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
