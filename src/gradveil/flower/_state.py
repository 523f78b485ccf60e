"""Saving and loading a client's state in Flower's records, between processes.

`context.state` stays with the node: Flower keeps it in the SuperNode and sends none of it.
"""

import io
from collections import OrderedDict
from typing import Any

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from gradveil.federated import Client

_RECORD = "gradveil"


def save_client(client: Client, records: RecordDict) -> None:
    """Write the client's place in its data and what its defense remembers."""
    state = client.state_dict()
    records[_RECORD] = ConfigRecord(
        {
            "root": state["root"],
            "step": state["step"],
            "defense": _written(state["defense"]),
            "defense.kind": _kind(client),
        }
    )


def load_client(client: Client, records: RecordDict) -> None:
    """Continue where the last message to this node ended, if there was one.

    A defense of another class than the last one, as a round's configuration may ask for, starts
    with its own fresh state.
    """
    if _RECORD not in records:
        return
    kept = records.config_records[_RECORD]
    remembered = client.defense.state_dict()
    if kept["defense.kind"] == _kind(client):
        written = kept["defense"]
        assert isinstance(written, bytes)
        remembered = torch.load(io.BytesIO(written), weights_only=True)
    client.load_state_dict({"root": kept["root"], "step": kept["step"], "defense": remembered})


def _written(remembered: dict[str, Any]) -> bytes:
    """What `torch.load` reads without running code."""
    _check_plain(remembered)
    buffer = io.BytesIO()
    torch.save(remembered, buffer)
    return buffer.getvalue()


def _check_plain(value: object) -> None:
    """Require types that `torch.load` knows by itself; not classes derived from them."""
    if type(value) in (dict, OrderedDict):
        value = [*value, *value.values()]  # type: ignore[misc,attr-defined]
    if type(value) in (list, tuple):
        for part in value:  # type: ignore[attr-defined]
            _check_plain(part)
    elif type(value) not in (bool, int, float, str, type(None)) and not isinstance(value, Tensor):
        raise TypeError(
            "A defense's `state_dict` should hold tensors, numbers, text and `None`, in dicts,"
            f" lists and tuples. Found {type(value).__name__}. Turn it into these."
        )


def _kind(client: Client) -> str:
    kind = type(client.defense)
    return f"{kind.__module__}:{kind.__qualname__}"
