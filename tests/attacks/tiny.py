"""Tiny observations that attacks solve in a moment."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradveil import NoDefense
from gradveil.attacks import Observation, ThreatModel, observe
from gradveil.defenses import Defense
from gradveil.messages import LocalSteps

RANGE = (torch.tensor(-1.0), torch.tensor(1.0))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def conv_net(
    channels: int, shape: tuple[int, int], *, bias: bool = True, smooth: bool = True
) -> nn.Module:
    """Two layers, for images of any shape, its weights a function of the arguments."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(channels, 6, 3, padding=1, bias=bias),
            nn.Tanh() if smooth else nn.LeakyReLU(),
            nn.Flatten(),
            nn.Linear(6 * shape[0] * shape[1], 4, bias=bias),
        ).eval()


def smooth_images(count: int, channels: int, shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Blurred noise in [-1, 1]."""
    noise = torch.randn(count, channels, *shape, generator=generator(seed))
    return (2 * F.avg_pool2d(noise, 3, stride=1, padding=1)).clamp(-1, 1)


def observed(
    model: nn.Module,
    inputs: Tensor,
    labels: list[int],
    defense: Defense | None = None,
    *,
    mechanism: str = "unknown",
    label_knowledge: str = "known",
    local: LocalSteps | None = None,
) -> Observation:
    """Play the client with these images."""
    return observe(
        model,
        F.cross_entropy,
        (inputs, torch.tensor(labels)),
        defense or NoDefense(),
        threat=ThreatModel(labels=label_knowledge, mechanism=mechanism),
        num_classes=4,
        input_range=RANGE,
        local=local,
        generator=generator(5),
    )


def error(found: Tensor, truth: Tensor) -> float:
    """The mean squared error, images in the order given."""
    return float((found - truth).square().mean())
