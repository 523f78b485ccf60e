"""Saving and loading a client's state in Flower's records, between processes.

`context.state` stays with the node: Flower keeps it in the SuperNode and sends none of it.
"""

from flwr.app import ConfigRecord, RecordDict

from gradveil.federated import Client

from ._records import record_of, tensors_of
from ._tree import read_tree, write_tree

_NUMBERS = "gradveil"
_TENSORS = "gradveil.defense"


def save_client(client: Client, records: RecordDict) -> None:
    """Write the client's place in its data and what its defense remembers."""
    state = client.state_dict()
    text, tensors = write_tree(state["defense"])
    records[_NUMBERS] = ConfigRecord(
        {
            "root": state["root"],
            "step": state["step"],
            "defense": text,
            "defense.kind": _kind(client),
        }
    )
    records.pop(_TENSORS, None)
    if tensors:
        records[_TENSORS] = record_of(tensors)


def load_client(client: Client, records: RecordDict) -> None:
    """Continue where the last message to this node ended, if there was one.

    A defense of another class than the last one, as a round's configuration may ask for, starts
    with its own fresh state.
    """
    if _NUMBERS not in records:
        return
    numbers = records.config_records[_NUMBERS]
    remembered = client.defense.state_dict()
    if numbers["defense.kind"] == _kind(client):
        record = records.array_records.get(_TENSORS)
        tensors = {} if record is None else tensors_of(record)
        remembered = read_tree(str(numbers["defense"]), tensors)
    client.load_state_dict(
        {"root": numbers["root"], "step": numbers["step"], "defense": remembered}
    )


def _kind(client: Client) -> str:
    kind = type(client.defense)
    return f"{kind.__module__}:{kind.__qualname__}"
