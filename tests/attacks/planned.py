"""Messages whose noise was planned from one private image."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import GradientMessage, load_dataset
from gradveil._tensors import flatten
from gradveil.attacks import Observation, ThreatModel, observe
from gradveil.defenses import Defense

DATA = load_dataset("mnist", limit=60)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seeded(build, seed: int = 0) -> nn.Module:
    """A model whose weights are a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build().eval()


def gradient_size(model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    """The root mean square of the gradient's entries."""
    values = GradientMessage(model, cross_entropy, batch[1])(batch[0])
    return float(flatten(values).square().mean().sqrt())


def observed(model: nn.Module, number: int, defense: Defense, size: int = 1) -> Observation:
    return observe(
        model,
        cross_entropy,
        DATA.batch(number, size),
        defense,
        threat=ThreatModel(mechanism="known"),
        num_classes=10,
        input_range=DATA.range,
        generator=generator(number),
    )


def correlation(one: Tensor, other: Tensor) -> float:
    """0 where one of the two is constant."""
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1].nan_to_num())
