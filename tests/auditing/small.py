"""A small table and small images, with models that take them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil.attacks import Adaptive, InvertingGradients
from gradveil.auditing import AuditResult, audit
from gradveil.models import build_model

Batch = tuple[Tensor, Tensor]


def table(count: int = 24) -> Batch:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(count, 5, generator=generator)
    return inputs, torch.arange(count) % 3


def images(count: int = 24) -> Batch:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(count, 1, 6, 6, generator=generator)
    return inputs, torch.arange(count) % 3


def table_model() -> nn.Module:
    return build_model("mlp", sizes=[5, 6, 3])


def image_model() -> nn.Module:
    return build_model("mlp", sizes=[36, 4, 3])


def attacks(steps: int = 5) -> list[InvertingGradients | Adaptive]:
    unaware = InvertingGradients(steps)
    return [unaware, Adaptive(unaware, prior=None, finish=None)]


def small_audit(batch: Batch, model: nn.Module, private: int = 2, **options: object) -> AuditResult:
    """An audit of the first examples, the others being public, with quick attacks."""
    inputs, targets = batch
    options = {"attacks": attacks(), "training": False, **options}
    return audit(
        model,
        cross_entropy,
        (inputs[:private], targets[:private]),
        public=(inputs[private:], targets[private:]),
        **options,
    )
