"""Fingerprints of training runs: equal ones may continue one another."""

import functools
import hashlib
import json
import types
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from .._client import Client
from .._server import Server


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
