"""Small data of every kind of task, with models that take them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from gradveil.attacks import InvertingGradients, ThreatModel
from gradveil.audit import AuditResult
from gradveil.models import build_model

from .small import audit

COUNT = 12


class Case(NamedTuple):
    """A model, its loss and its examples."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    inputs: Tensor
    targets: Tensor


class Tagger(nn.Module):
    """Scores (N, length, classes) for sequences of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.hidden(inputs)))
        return scores


def classes_last(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores.transpose(1, 2), labels)


def flattened(scores: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return make()


def segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 3, 1))


def cases() -> dict[str, Case]:
    """One of each kind."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(COUNT, 5, generator=generator)
    images = torch.rand(COUNT, 1, 5, 5, generator=generator)
    vectors = torch.randn(COUNT, 3, 3, generator=generator)
    tags = torch.randint(4, (COUNT, 3), generator=generator)
    yes = (torch.rand(COUNT, 3, generator=generator) > 0.5).float()
    model = build_model("mlp", sizes=[5, 6, 2])
    return {
        "regression": Case(model, mse_loss, rows, 5 * rows[:, :2] + 1),
        "multi-label": Case(
            build_model("mlp", sizes=[5, 6, 3]), binary_cross_entropy_with_logits, rows, yes
        ),
        "segmentation": Case(
            seeded(segmenter), cross_entropy, images, (3 * images[:, 0]).long().clamp(max=2)
        ),
        "sequences": Case(seeded(Tagger), classes_last, vectors, tags),
        "sequences, flattened": Case(seeded(Tagger), flattened, vectors, tags),
    }


def small_audit(case: Case, labels: str = "known", **options: Any) -> AuditResult:
    """Two private examples, the others public, no defense and one quick attack."""
    options = {"attacks": [InvertingGradients(3)], **options}
    return audit(
        case.model,
        case.loss_fn,
        (case.inputs[:2], case.targets[:2]),
        options.pop("defenses", ["no-defense"]),
        public=(case.inputs[2:], case.targets[2:]),
        threat=ThreatModel(labels=labels, mechanism="known"),
        **options,
    )
