"""A bar for attacks: how far, at which cost, how long still."""

from collections.abc import Iterator
from contextlib import contextmanager

from gradveil._extras import require

from .._attack import Progress


@contextmanager
def progress_bar(description: str = "attack") -> Iterator[Progress]:
    """A `progress` for any attack, drawn on stderr: steps, best cost and the time left.

    An attack of several stages begins the bar again with each of them.

    Args:
        description: What stands before the bar.

    >>> from gradveil.attacks import InvertingGradients
    >>> with progress_bar("images 1 to 4") as progress:
    ...     attack = InvertingGradients(steps=10, progress=progress)
    """
    require("the progress bar", "gradveil[cli]", "rich")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cost {task.fields[cost]:.4g}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=None, cost=float("nan"))
        latest = [0]

        def progress(step: int, steps: int, cost: float) -> None:
            if step < latest[0]:
                bar.reset(task, total=steps, cost=cost)
            latest[0] = step
            bar.update(task, completed=step, total=steps, cost=cost)

        yield progress
