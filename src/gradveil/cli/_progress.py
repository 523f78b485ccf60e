"""One progress bar for long commands, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gradveil.auditing import Progress as Tell


@contextmanager
def bar(console: Console) -> Iterator[Tell]:
    """What is running, how much is done, the time left; a line for each part where it is a file."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120) as shown:
        task = shown.add_task("starting", total=1.0)
        yield lambda what, share: shown.update(task, description=what, completed=share)


def _lines(console: Console) -> Tell:
    last = ""

    def tell(what: str, share: float) -> None:
        nonlocal last
        if what != last:
            last = what
            console.print(f"{share:4.0%} {what}", highlight=False)

    return tell
