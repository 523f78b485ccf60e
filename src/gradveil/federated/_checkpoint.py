"""Checkpoints: whole or not at all, of one run, without code; and what was released since."""

import functools
import hashlib
import io
import json
import pickle
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradveil._checks import WrongValue
from gradveil._files import write_atomically

from ._client import Client
from ._server import Server

CHECKPOINT, RELEASES = "checkpoint", "spent.json"


def note_releases(folder: Path, count: int) -> None:
    """Write down that so many releases were begun; call it before the last of them is made."""
    write_atomically(folder / RELEASES, json.dumps({"releases": count}))


def noted_releases(folder: Path) -> int:
    """How many were begun, those after the last checkpoint included; 0 if none was noted."""
    path = folder / RELEASES
    return int(json.loads(path.read_text())["releases"]) if path.exists() else 0


def save_checkpoint(folder: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write the state in the place of the last one, behind a checksum."""
    buffer = io.BytesIO()
    torch.save({"fingerprint": fingerprint, "state": state}, buffer)
    body = buffer.getvalue()
    write_atomically(folder / CHECKPOINT, hashlib.sha256(body).digest() + body)


def load_checkpoint(folder: Path, fingerprint: str) -> dict[str, Any]:
    """The folder's state, if it is whole and belongs to the run with this fingerprint."""
    path, file = folder / CHECKPOINT, f"File `{folder / CHECKPOINT}`"
    if not path.exists():
        raise WrongValue(f"Folder `{folder}`", "hold a checkpoint", "none")
    content = path.read_bytes()
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        found = "that it is truncated or damaged, or of another kind"
        advice = "Start again in another folder."
        raise WrongValue(file, "be a whole checkpoint of gradveil", found, advice)
    try:
        loaded = torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = "something else, which was not run"
        raise WrongValue(file, "hold tensors, numbers and text", found) from error
    if loaded["fingerprint"] != fingerprint:
        expected = "come from a run with this data, model, defense and settings"
        advice = "Use the settings it was made with, or another folder."
        raise WrongValue(file, expected, "the fingerprint of another", advice)
    state: dict[str, Any] = loaded["state"]
    return state


def run_fingerprint(server: Server, clients: Sequence[Client], options: dict[str, Any]) -> str:
    """SHA-256 of initial weights, optimizer, data, defenses and options."""
    groups = [
        {key: repr(value) for key, value in group.items() if key != "params"}
        for group in server.optimizer.param_groups
    ]
    content = {
        "model": _module(server.model),
        "kind": server.kind,
        "optimizer": [type(server.optimizer).__name__, groups],
        "clients": [describe(client) for client in clients],
        "options": describe(options),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's numbers, with its type and shape."""
    plain = tensor.detach().cpu().contiguous()
    head = f"{plain.dtype} {tuple(plain.shape)} ".encode()
    data = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return hashlib.sha256(head + data).hexdigest()


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
    inside = _module(thing) if isinstance(thing, nn.Module) else []
    return [f"{kind.__module__}.{kind.__qualname__}", public, *inside]


def _module(module: nn.Module) -> list[Any]:
    """What a module is made of, what of it is trained, in which mode, and its numbers."""
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    numbers = {name: digest(value) for name, value in module.state_dict().items()}
    return [repr(module), trained, [each.training for each in module.modules()], numbers]


def _code(code: types.CodeType) -> list[Any]:
    """What a function does, wherever it is written."""
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]
