"""A small model of images with messages, and every rival once."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil import Defense, GradientMessage
from gradveil.defenses import (
    QSGD,
    ErrorFeedback,
    InstaHide,
    LaplaceNoise,
    MixUp,
    Outpost,
    Pixelization,
    SignCompression,
    Soteria,
)

RIVALS: dict[str, Callable[[], Defense]] = {
    "laplace-noise(scale=0.01)": lambda: LaplaceNoise(0.01),
    "sign-compression": SignCompression,
    "qsgd(levels=64)": lambda: QSGD(64),
    "error-feedback(ratio=0.6)": lambda: ErrorFeedback(0.6),
    "soteria(ratio=0.5)": lambda: Soteria(0.5),
    "pixelization(size=3)": lambda: Pixelization(3),
    "mix-up(weight=0.8)": lambda: MixUp(0.8),
    "insta-hide(images=2)": lambda: InstaHide(2),
    "outpost(scale=0.1)": lambda: Outpost(0.1),
}


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)
        ).eval()


def images(count: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 6, 6, generator=generator)


LABELS = torch.tensor([0, 1, 2, 1])


def gradient(targets: Tensor = LABELS) -> GradientMessage:
    return GradientMessage(model(), cross_entropy, targets)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)
