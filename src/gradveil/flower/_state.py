"""A client's state in records, where a new process for each message finds it again.

`context.state` stays with the node: Flower keeps it in the SuperNode and sends none of it.
"""

from typing import Any

from flwr.app import ConfigRecord, RecordDict

from gradveil.federated import Client

from ._records import record_of, tensors_of

_NUMBERS = "gradveil"
_TENSORS = "squared_sensitivities"
_KEY = "gradveil.squared-sensitivities"


def save_client(client: Client, records: RecordDict) -> None:
    """Write the client's place in its data and what its defense remembers."""
    state = client.state_dict()
    defense: dict[str, Any] = state["defense"]
    numbers = {"root": state["root"], "step": state["step"]}
    if defense:
        numbers |= {"defense.step": defense["step"], "defense.count": float(defense["count"])}
    records[_NUMBERS] = ConfigRecord(numbers)
    if defense.get(_TENSORS):
        records[_KEY] = record_of(defense[_TENSORS])


def load_client(client: Client, records: RecordDict) -> None:
    """Continue where the last message to this node ended, if there was one."""
    if _NUMBERS not in records:
        return
    numbers = records.config_records[_NUMBERS]
    defense: dict[str, Any] = {}
    if "defense.step" in numbers:
        found = records.array_records.get(_KEY)
        defense = {
            "step": numbers["defense.step"],
            "count": numbers["defense.count"],
            _TENSORS: {} if found is None else tensors_of(found),
        }
    client.load_state_dict({"root": numbers["root"], "step": numbers["step"], "defense": defense})
