"""The command line in this process, in a folder of small files; what it must show for a mistake."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gradveil.cli import main

MODELS = """
import sys
import torch
from torch import nn


def table_net():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def raises():
    raise RuntimeError("no model today")


def exits():
    sys.exit(3)


def none():
    return None


def number():
    return 7


def needs(width):
    return nn.Linear(5, width)


def two_classes():
    return nn.Linear(5, 2)


def other_shape():
    return nn.Linear(9, 3)


def frozen():
    return nn.Linear(5, 3).requires_grad_(False)


def half():
    return nn.Linear(5, 3).half()


def parallel():
    return nn.DataParallel(nn.Linear(5, 3))


def not_finite():
    model = nn.Linear(5, 3)
    model.weight.data[0, 0] = float("nan")
    return model


def infinite_buffer():
    model = nn.Linear(5, 3)
    model.register_buffer("scale", torch.tensor(float("inf")))
    return model


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        raise KeyError("lost")


class ReturnsNothing(Fails):
    def forward(self, x):
        return None


class Leaves(Fails):
    def forward(self, x):
        sys.exit(5)


class Checkpointed(Fails):
    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.layer, x, use_reentrant=False)


def meta():
    return nn.Linear(5, 3, device="meta")


def defense():
    raise RuntimeError("no defense today")


CONSTANT = 3
"""


def make_workplace(folder: Path) -> None:
    """A module of models, broken modules, tables, images, weight files."""
    (folder / "own.py").write_text(MODELS)
    (folder / "broken_syntax.py").write_text("def f(:\n")
    (folder / "broken_import.py").write_text("raise ZeroDivisionError('at import')\n")
    (folder / "broken_exit.py").write_text("import sys\nsys.exit(4)\n")
    numbers = np.random.default_rng(0)
    rows, labels = numbers.normal(size=(20, 5)).astype(np.float32), np.arange(20) % 3
    np.savez(folder / "table.npz", x=rows, y=labels)
    np.savez(folder / "ignored.npz", x=rows, y=np.where(labels == 2, -100, labels))
    np.savez(folder / "large.npz", x=rows, y=labels + 2**40)
    np.savez(folder / "floats.npz", x=rows, y=labels.astype(float))
    np.savez(folder / "nan.npz", x=rows * np.nan, y=labels)
    np.savez(folder / "names.npz", a=rows, b=labels)
    np.savez(folder / "integers.npz", x=rows.astype(np.int64), y=labels)
    np.savez(folder / "one[bold]name.npz", x=rows, y=labels)
    whole = (folder / "table.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "text.npz").write_text("no archive")
    (folder / "notes.txt").write_text("notes")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    _weights(folder)


def _weights(folder: Path) -> None:
    net: nn.Module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    state = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    torch.save(state, folder / "good.pt")
    whole = (folder / "good.pt").read_bytes()
    for name, size in (("cut", len(whole) // 2), ("cut_late", len(whole) - 40), ("empty", 0)):
        (folder / f"{name}.pt").write_bytes(whole[:size])
    torch.save({f"x.{name}": value for name, value in state.items()}, folder / "names.pt")
    torch.save({name: value[:1] for name, value in state.items()}, folder / "shapes.pt")
    torch.save({name: value * torch.nan for name, value in state.items()}, folder / "nan.pt")
    torch.save({name: value * 1j for name, value in state.items()}, folder / "complex.pt")
    torch.save([1, 2], folder / "list.pt")
    torch.save({1: torch.zeros(1)}, folder / "numbers.pt")


class Done:
    """How a command ended."""

    def __init__(self, code: Any, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        self.text = " ".join(err.replace("│", " ").split())


def run(*arguments: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Done:
    """`gradveil ...`, with its exit code and what it printed."""
    monkeypatch.setattr(sys, "argv", ["gradveil", *arguments])
    monkeypatch.setenv("COLUMNS", "300")
    try:
        main()
        code: Any = 0
    except SystemExit as end:
        code = end.code
    return Done(code or 0, *capsys.readouterr())


def files(folder: Path) -> dict[str, int]:
    """Every file of a folder with its size; bytecode is Python's own."""
    return {
        str(path.relative_to(folder)): path.stat().st_size if path.is_file() else -1
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts and not path.is_symlink()
    }


def assert_refused(done: Done, option: str, found: str) -> None:
    """Exit code 2, no traceback, the option as typed, and what was found."""
    assert done.code == 2, (done.code, done.out, done.err)
    assert "Traceback" not in done.err + done.out
    assert option in done.text, done.text
    assert found in done.text, done.text


def error_of(done: Done) -> str:
    """The error of a command with `--format json`."""
    text: str = json.loads(done.out)["error"]
    return text
