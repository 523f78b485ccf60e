"""Chooses the view: answers and curves, or a comparison at one point each."""

from rich.console import Console
from rich.markup import escape

from gradveil.auditing import AuditResult
from gradveil.auditing.report import weights

from ._comparison import show_comparison
from ._curves import show_frontier


def show_audit(result: AuditResult, console: Console) -> None:
    """What was found, then what was audited, then notes."""
    if result.frontier is None:
        _show_setup(result, console)
        show_comparison(result, console)
        return
    show_frontier(result, result.frontier, console)
    _show_setup(result, console)
    if result.notes:
        console.print(escape(" ".join(result.notes)), style="dim", highlight=False)


def _show_setup(result: AuditResult, console: Console) -> None:
    setup = result.setup
    console.print(
        f"[bold]{escape(setup.model)}[/] ({setup.parameters:,} parameters,"
        f" {escape(weights(result))}) on {escape(setup.data)}, {setup.date}, gradveil"
        f" {setup.versions.get('gradveil', '')}:"
        f" {setup.batches} × {setup.batch_size} examples, {setup.seeds} seed(s),"
        f" {setup.message} sent. {escape(setup.equal)}",
        highlight=False,
    )
