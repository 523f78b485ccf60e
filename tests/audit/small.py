"""A small table and small images, with models that take them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil.attacks import Adaptive, InvertingGradients
from gradveil.audit import (
    AuditResult,
    Federation,
    Releases,
    Settings,
    Subject,
    checked_subject,
    run,
)
from gradveil.audit._subject import Audited
from gradveil.messages import LocalSteps
from gradveil.models import build_model

Batch = tuple[Tensor, Tensor]
OF_SUBJECT = ("public", "normalization", "output", "layout", "name")
OF_FEDERATION = ("clients", "optimizer", "lr", "local", "batch_size", "aggregation")
OF_RELEASES = ("rounds", "delta", "sample_rate")
OF_RUN = ("folder", "time_budget", "progress", "jobs")


GIVEN = (
    "gradient-noise(scale=0.0626)",
    "optimal-noise(scale=0.0655)",
    "clamped-noise(scale=0.0626, clip=0.335)",
    "optimal-clamped-noise(scale=0.0619, clip=0.335)",
    "gradient-pruning(ratio=0.9)",
    "optimal-pruning(ratio=0.466)",
    "gradient-pruning(ratio=0.9, noise=gradient-noise(scale=0.0803))",
    "optimal-pruning(ratio=0.466, noise=optimal-noise(scale=0.0911))",
)
"""Each optimal defense at the utility of its twin, on `images` with the `image_model`."""


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


def audit(
    model: nn.Module, loss_fn: Any, batch: Any, defenses: Any = None, attacks: Any = None,
    *, batches: int = 1, training: bool = False, training_rounds: int = 5,
    **options: Any,
) -> AuditResult:  # fmt: skip
    """An audit at given strengths, its parts taken from one list of options."""

    def taken(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    subject = Subject(model, loss_fn, batch, **taken(OF_SUBJECT))
    size = {} if batches == 1 else {"batch_size": len(batch[0]) // batches}
    federation = Federation(rounds=training_rounds, **size, **taken(OF_FEDERATION))
    releases, given = taken(OF_RELEASES), taken(OF_RUN)
    usual = {"training_seeds": 3 if training else 0}
    usual |= {"releases": Releases(**releases)} if releases else {}
    settings = Settings(defenses or GIVEN, attacks, **{**usual, **options})
    return run(subject, federation, settings, **given)


def small_audit(batch: Batch, model: nn.Module, private: int = 2, **options: object) -> AuditResult:
    """An audit of the first examples, the others being public, with quick attacks."""
    inputs, targets = batch
    options = {"attacks": attacks(), **options}
    return audit(
        model,
        cross_entropy,
        (inputs[:private], targets[:private]),
        public=(inputs[private:], targets[private:]),
        **options,
    )


def make_subject(
    model: nn.Module, loss_fn: Any, batch: Batch, *, batches: int = 1,
    local: LocalSteps | None = None, labels_known: bool = True, **options: Any,
) -> Audited:  # fmt: skip
    """A subject, checked."""
    federation = Federation(batch_size=len(batch[0]) // batches, local=local)
    return checked_subject(
        Subject(model, loss_fn, batch, **options), federation, labels_known=labels_known
    )
