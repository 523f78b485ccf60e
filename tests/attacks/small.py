"""Small private batches, models and observations for the tests of attacks."""

import torch
from torch import Tensor, nn

from gradveil import NoDefense
from gradveil.attacks import Observation, ThreatModel, observe
from gradveil.defenses import Defense
from gradveil.messages import LocalSteps

LOSS = nn.functional.cross_entropy
RANGE = (torch.tensor(0.0), torch.tensor(1.0))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth_images(
    *shape: int, seed: int = 0, classes: int = 10, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] made of a few waves, and labels."""
    count, channels, height, width = shape
    draws = torch.rand(count, channels, 3, 3, generator=seeded(seed), dtype=dtype)
    rows = torch.linspace(0, 1, height, dtype=dtype)[:, None]
    columns = torch.linspace(0, 1, width, dtype=dtype)[None, :]
    image = torch.zeros(shape, dtype=dtype)
    for wave in draws.unbind(2):
        a, b, c = wave[..., None, None].unbind(2)
        image = image + torch.sin(9 * a * rows + 9 * b * columns + 6 * c)
    labels = torch.randint(classes, (count,), generator=seeded(seed + 1))
    return (image / 6 + 0.5).clamp(0, 1), labels


def observed(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    *,
    defense: Defense | None = None,
    labels: str = "unknown",
    classes: int = 10,
    local: LocalSteps | None = None,
    seed: int = 0,
) -> Observation:
    return observe(
        model, LOSS, batch, defense or NoDefense(), threat=ThreatModel(labels=labels),
        num_classes=classes, input_range=RANGE, local=local, generator=seeded(seed),
    )  # fmt: skip
