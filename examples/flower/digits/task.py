"""What clients and server agree on: the model and the data."""

from flwr.app import Context
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import Defense, PrivateNoise, load_dataset
from gradveil.catalog import build_defense
from gradveil.federated import Limits, Planner, partition
from gradveil.models import build_model
from gradveil.privacy import PrivacyAccount

HELD_OUT = 512
LIMITS = Limits(
    [
        "optimal-noise(scale=0.01)",
        "gradient-noise(scale=0.01)",
        "from-server(optimal-noise(scale=0.01))",
        "private-noise(noise_multiplier=1.0, clip=1.0)",
    ]
)
"""The least noise that a node adds, whatever a run asks for."""

SAMPLE_RATE = 0.01
"""With private noise each node takes each of its digits into a round with this probability."""


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


def load_rate(context: Context) -> float | None:
    """How probable each digit is in a round, for a private node; `None` for all others."""
    return SAMPLE_RATE if isinstance(load_defense(context), PrivateNoise) else None


def load_account(defense: str, delta: float, target_epsilon: float) -> PrivacyAccount | None:
    """What a run with this defense spends, if it has (ε, δ), and its budget (0 for no limit)."""
    built = build_defense(defense)
    if not isinstance(built, PrivateNoise):
        return None
    budget = target_epsilon or None
    z, unit, grid = built.noise_multiplier, built.unit, built.grid
    return PrivacyAccount(z, SAMPLE_RATE, delta, unit, budget, grid=grid)


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
