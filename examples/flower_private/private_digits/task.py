"""What clients and server agree on: the privacy parameters, the model and the data."""

from flwr.app import Context
from torch import Tensor, nn

from gradveil import PrivateNoise, load_dataset
from gradveil.federated import partition
from gradveil.models import build_model
from gradveil.privacy import PrivacyAccount

NOISE_MULTIPLIER, CLIP = 1.0, 1.0
SAMPLE_RATE = 0.02
"""The probability with which each digit of a node is in a round."""
BATCH = 32
"""What a node divides its sum by, and what it tells as its number of examples: public."""
EPSILON, DELTA = 2.0, 1e-5
"""The budget: a run ends before the round that would exceed it."""
HELD_OUT = 512


def load_defense() -> PrivateNoise:
    """Each digit's gradient clipped, and discrete noise from a secure generator."""
    return PrivateNoise(NOISE_MULTIPLIER, CLIP)


def load_account() -> PrivacyAccount:
    """What a run spends."""
    return PrivacyAccount(NOISE_MULTIPLIER, SAMPLE_RATE, DELTA, budget=EPSILON)


def load_model() -> nn.Module:
    """A small perceptron: few parameters, little noise."""
    return build_model("mlp", sizes=[784, 32, 10])


def load_part(context: Context) -> tuple[Tensor, Tensor]:
    """This node's part of the embedded digits."""
    data, settings = load_dataset("mnist"), context.node_config
    inputs, targets = data.inputs[:-HELD_OUT], data.targets[:-HELD_OUT]
    part = partition(targets, int(settings["num-partitions"]))[int(settings["partition-id"])]
    return inputs[part], targets[part]


def load_held_out() -> tuple[Tensor, Tensor]:
    """Public digits, on which the server evaluates."""
    data = load_dataset("mnist")
    return data.inputs[-HELD_OUT:], data.targets[-HELD_OUT:]
