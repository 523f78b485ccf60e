"""The folder of a training run: its files, and one run in it at a time."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from gradveil._files import alone_in, write_atomically

from ._checkpoint import has_checkpoint
from ._history import TrainingHistory

HISTORY = "history.json"


def save_history(history: TrainingHistory, folder: Path) -> None:
    """`history.json` with everything, `rounds.csv` without times: same seed, same bytes."""
    write_atomically(folder / HISTORY, history.to_json())
    write_atomically(folder / "rounds.csv", history.to_csv(times=False))


def save_weights(model: nn.Module, path: Path) -> None:
    """The model's `state_dict`, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    write_atomically(path, buffer.getvalue())


def hold_folder(folder: Path | None) -> contextlib.AbstractContextManager[None]:
    """Make the folder, and keep other runs out of it."""
    return contextlib.nullcontext() if folder is None else _held(folder)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder, locked. One that was made for a run that fails at once leaves no trace."""
    made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with alone_in(folder):
            yield
    except Exception:
        if made and [path.name for path in folder.iterdir()] == [".lock"]:
            (folder / ".lock").unlink()
            with contextlib.suppress(OSError):
                for path in made:
                    path.rmdir()
        raise


def check_unused(folder: Path) -> None:
    """Require a folder without the results or checkpoints of another run."""
    if has_checkpoint(folder):
        raise FileExistsError(
            f"Folder `{folder}` should hold no checkpoint of an earlier run. Found one. Continue"
            " it with `resume` (`--resume`), or choose another folder."
        )
    if (folder / HISTORY).exists():
        raise FileExistsError(
            f"Folder `{folder}` should hold no results of an earlier run. Found `{HISTORY}`."
            " Choose another folder, or remove it."
        )
