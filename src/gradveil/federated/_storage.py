"""What a run writes: checkpoints, history, curves, what was released."""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import json
import os
import pickle
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._drawing import new_figure, save_figure
from gradveil._files import alone_in, write_atomically

from ._client import Client
from ._server import Server

SPENT = "spent.json"


def note_releases(folder: Path, count: int) -> None:
    """Write down that so many releases were begun; call it before the last of them is made."""
    write_atomically(folder / SPENT, json.dumps({"releases": count}))


def noted_releases(folder: Path) -> int:
    """How many were begun; 0 if none was noted.

    A checkpoint may be older: rounds after it were released, too, though a resumed run plays them
    again.
    """
    path = folder / SPENT
    return int(json.loads(path.read_text())["releases"]) if path.exists() else 0


@dataclass(frozen=True)
class Skip:
    """A client that was asked in a round and does not count in it, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class RoundMetrics:
    """One round. `None` stands for what the engine cannot see, or did not look at this time."""

    round: int
    """From 1."""
    clients: tuple[int, ...]
    """Those whose replies count."""
    skipped: tuple[Skip, ...]
    examples: int
    bytes_sent: int
    """By all clients; zeros of a pruned reply count as not sent (see `Reply.size`)."""
    loss: float | None = None
    """Of the clients' batches before the step, in the mean over examples."""
    utility_first: float | None = None
    """U1, in the mean over clients."""
    utility_second: float | None = None
    """U2, likewise."""
    held_out_loss: float | None = None
    """After the step."""
    accuracy: float | None = None
    """On the held-out data, after the step."""
    epsilon: float | None = None
    """ε of all rounds so far, at the δ of `TrainingHistory.privacy`; `None` without an account."""
    seconds_gradient: float | None = None
    """Of plain gradients of the same batches, the sum over clients."""
    seconds_defense: float | None = None
    """What the defense added to them."""
    shape_bytes: int | None = None
    """Of the plan's shape that the server sent to each client; `None` without a planner."""


@dataclass(frozen=True)
class TrainingHistory:
    """All rounds of a run."""

    rounds: tuple[RoundMetrics, ...]
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The `TrainingConfig` as plain values; empty for a run that was put together by hand."""
    engine: str = "local"
    privacy: dict[str, Any] | None = None
    """What the privacy account is about (`PrivacyAccount.describe`), and whether the run is a
    "simulation", whose noise came from a seed: no ε of it protects anybody. `None` without one."""
    stopped: str | None = None
    """Why the run ended before its last round, if it did."""

    @property
    def simulation(self) -> bool:
        """Whether ε is what a run with secret noise would have, as the noise of this had a seed."""
        told = self.privacy or {}
        return bool(told.get("simulation", not told.get("secure", True)))  # as it was once called

    @property
    def skipped(self) -> int:
        """How often a client was skipped, over all rounds."""
        return sum(len(row.skipped) for row in self.rounds)

    @property
    def accuracy(self) -> float | None:
        """The last that was measured."""
        return next((r.accuracy for r in reversed(self.rounds) if r.accuracy is not None), None)

    def smoothed_loss(self, window: int = 8) -> list[float]:
        """The mean of the last `window` rounds' losses, at each round."""
        losses = [row.loss for row in self.rounds if row.loss is not None]
        tails = (losses[max(0, i + 1 - window) : i + 1] for i in range(len(losses)))
        return [sum(tail) / len(tail) for tail in tails]

    def to_json(self) -> str:
        """The history as JSON text, floats exact."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "TrainingHistory":
        """The history that `to_json` wrote."""
        plain = json.loads(text)
        return cls(**{**plain, "rounds": tuple(_restored(row) for row in plain["rounds"])})

    def to_csv(self, *, times: bool = True) -> str:
        """One line for each round; without times, the same bytes for the same seed.

        ε of a simulation is in the column "epsilon_simulated".
        """
        names = [f.name for f in dataclasses.fields(RoundMetrics) if times or f.name not in TIMES]
        said = {"epsilon": "epsilon_simulated"} if self.simulation else {}
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([said.get(name, name) for name in names])
        writer.writerows([_cell(getattr(row, name)) for name in names] for row in self.rounds)
        return text.getvalue()


def _restored(row: dict[str, Any]) -> RoundMetrics:
    skipped = tuple(Skip(**skip) for skip in row["skipped"])
    return RoundMetrics(**{**row, "clients": tuple(row["clients"]), "skipped": skipped})


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(f"{v.client}" if isinstance(v, Skip) else str(v) for v in value)
    return "" if value is None else value


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


TIMES = ("seconds_gradient", "seconds_defense")
"""What differs from one run to the next even with the same seed."""


def draw_curves(histories: Mapping[str, TrainingHistory], path: Path, window: int = 8) -> None:
    """The clients' loss (pale; its running mean strong) and what was held out; one colour a run."""
    figure = new_figure(9.5, 3.6)
    left, right = figure.subplots(1, 2)
    for index, (name, history) in enumerate(histories.items()):
        color = f"C{index}"
        told = [row for row in history.rounds if row.loss is not None]
        numbers = [row.round for row in told]
        left.plot(numbers, [row.loss for row in told], color=color, alpha=0.25, linewidth=0.8)
        left.plot(numbers, history.smoothed_loss(window), color=color, label=name)
        seen = [row for row in history.rounds if row.accuracy is not None]
        right.plot([r.round for r in seen], [r.accuracy for r in seen], "o-", color=color, ms=3)
    left.set_ylabel(f"clients' loss (mean of {window} rounds)")
    right.set_ylabel("accuracy on held-out data")
    right.set_ylim(0, 1)
    for axis in (left, right):
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    if left.get_legend_handles_labels()[0]:
        left.legend(fontsize=8)
    figure.tight_layout()
    save_figure(figure, path)


def run_fingerprint(server: Server, clients: Sequence[Client], options: dict[str, Any]) -> str:
    """SHA-256 of initial weights, optimizer, data, defenses and options."""
    content = {
        "weights": {n: digest(t) for n, t in server.model.state_dict().items()},
        "model": _model(server.model),
        "kind": server.kind,
        "optimizer": _optimizer(server.optimizer),
        "clients": [_client(client) for client in clients],
        "options": options,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's numbers, with its type and shape."""
    plain = tensor.detach().cpu().contiguous()
    head = f"{plain.dtype} {tuple(plain.shape)} ".encode()
    data = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return hashlib.sha256(head + data).hexdigest()


def _client(client: Client) -> list[Any]:
    local = None if client.local is None else asdict(client.local)
    data = [digest(client.inputs), digest(client.targets)]
    defense = describe(client.defense)
    drawn = asdict(client.batches)
    return [client.identifier, *data, defense, drawn, client.seed, client.secure, local]


def describe(thing: object) -> Any:
    """What an object is and its public attributes, all the way down, as plain values."""
    if isinstance(thing, Tensor):
        return digest(thing)
    if isinstance(thing, (bool, int, float, str, type(None))):
        return thing
    if isinstance(thing, (list, tuple)):
        return [describe(part) for part in thing]
    if isinstance(thing, dict):
        return {str(key): describe(part) for key, part in thing.items()}
    if isinstance(thing, functools.partial):
        return ["partial", *(describe(part) for part in (thing.func, thing.args, thing.keywords))]
    if isinstance(thing, types.FunctionType):
        return [f"{thing.__module__}.{thing.__qualname__}", _code(thing.__code__)]
    kind = thing if callable(thing) and hasattr(thing, "__qualname__") else type(thing)
    public = {k: describe(v) for k, v in getattr(thing, "__dict__", {}).items() if k[0] != "_"}
    inside: list[Any] = []
    if isinstance(thing, nn.Module):
        inside = [*_model(thing), {n: digest(t) for n, t in thing.state_dict().items()}]
    return [f"{kind.__module__}.{kind.__qualname__}", public, *inside]


def _model(model: nn.Module) -> list[Any]:
    """What a module is made of, what of it is trained, and in which mode; not its numbers."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [repr(model), trained, [module.training for module in model.modules()]]


def _code(code: types.CodeType) -> list[Any]:
    """What a function does, wherever it is written."""
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _optimizer(optimizer: torch.optim.Optimizer) -> list[Any]:
    groups = [
        {key: repr(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    return [type(optimizer).__name__, groups]


_FORMAT = b"gradveil checkpoint 1"
CURRENT, PREVIOUS, REFUSED = "checkpoint", "checkpoint.previous", "checkpoint.refused"


class CheckpointError(ValueError):
    """A checkpoint that cannot be continued from."""


@dataclass(frozen=True)
class Loaded:
    """A state, and what was wrong with the newer checkpoint that could not be used."""

    state: dict[str, Any]
    refused: str | None = None


def save_checkpoint(folder: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write the state; the checkpoint that was there becomes the previous one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = fingerprint.encode() + b"\n" + buffer.getvalue()
    digest = hashlib.sha256(body).hexdigest().encode()
    current = folder / CURRENT
    if current.exists():
        os.replace(current, folder / PREVIOUS)
    write_atomically(current, b"\n".join((_FORMAT, digest, body)))


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one to continue from, or at least to refuse."""
    return any((folder / name).exists() for name in (CURRENT, PREVIOUS))


def load_checkpoint(folder: Path, fingerprint: str) -> Loaded:
    """The newest good state. A refused newer one is moved to ``checkpoint.refused``.

    Raises:
        CheckpointError: If none is good, with the reason for each.
    """
    reasons: list[str] = []
    for name in (CURRENT, PREVIOUS):
        if not (folder / name).exists():
            continue
        try:
            state = read_checkpoint(folder / name, fingerprint)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if reasons:
            os.replace(folder / CURRENT, folder / REFUSED)
        return Loaded(state, reasons[0] if reasons else None)
    raise CheckpointError(" ".join(reasons) or f"`{folder}` should hold a checkpoint. Found none.")


def read_checkpoint(path: Path, fingerprint: str) -> dict[str, Any]:
    """The state in one file, if it is whole and belongs to the run with this fingerprint."""
    parts = path.read_bytes().split(b"\n", 2)
    if len(parts) < 3 or parts[0] != _FORMAT:
        raise CheckpointError(
            f"`{path}` should be a checkpoint of gradveil. Found a file that is cut off at its"
            " start, or of another kind. It is not used."
        )
    if hashlib.sha256(parts[2]).hexdigest().encode() != parts[1]:
        raise CheckpointError(
            f"`{path}` should have the checksum that it states. Found another: it is truncated"
            " or damaged. It is not used."
        )
    stored, _, payload = parts[2].partition(b"\n")
    if stored != fingerprint.encode():
        raise CheckpointError(
            f"`{path}` should come from a run with this data, model, defense and settings. Found"
            " the fingerprint of another. Use the settings it was made with, or another folder."
        )
    try:
        state: dict[str, Any] = torch.load(
            io.BytesIO(payload), map_location="cpu", weights_only=True
        )
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"`{path}` should hold tensors, numbers and text. Found something else, which was not"
            " run. It is not used."
        ) from error
    return state
