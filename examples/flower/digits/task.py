"""What clients and server agree on: the model and the data."""

from flwr.app import Context
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import Defense, load_dataset
from gradveil.catalog import build_defense
from gradveil.federated import Limits, Planner, partition
from gradveil.models import build_model

HELD_OUT = 512
LIMITS = Limits(
    [
        "optimal-noise(scale=0.01)",
        "gradient-noise(scale=0.01)",
        "optimal-noise(scale=0.01, source='server')",
    ]
)
"""The least noise that a node adds, whatever a run asks for."""


def load_model() -> nn.Module:
    """The MNIST CNN of the paper, 119,530 parameters."""
    return build_model("simple-conv-net")


def load_part(context: Context) -> tuple[Tensor, Tensor]:
    """This node's own file or folder, if its configuration names one, or its part of MNIST."""
    settings = context.node_config
    if "data" in settings:
        data = load_dataset(str(settings["data"]))
        return data.inputs, data.targets
    data = load_dataset("mnist")
    inputs, targets = data.inputs[:-HELD_OUT], data.targets[:-HELD_OUT]
    part = partition(targets, int(settings["num-partitions"]))[int(settings["partition-id"])]
    return inputs[part], targets[part]


def load_defense(context: Context) -> Defense:
    """The node's own choice comes first, then what the run asks for, within the node's limits."""
    if "defense" in context.node_config:
        return build_defense(str(context.node_config["defense"]))
    return LIMITS.defense(str(context.run_config["defense"]))


def load_held_out() -> tuple[Tensor, Tensor]:
    """Public digits, on which the server evaluates."""
    data = load_dataset("mnist")
    return data.inputs[-HELD_OUT:], data.targets[-HELD_OUT:]


def load_planner(examples: int) -> Planner | None:
    """Plans the noise of clients that plan from the server, from so many public digits."""
    if not examples:
        return None
    inputs, targets = load_held_out()
    return Planner((inputs[:examples], targets[:examples]), cross_entropy, batch_size=16)
