"""Benchmark of attacks: the PSNR that each reaches in a given time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from gradveil.attacks import (
    DLG,
    IDLG,
    Adaptive,
    Attack,
    GradInversion,
    InvertingGradients,
    Observation,
    ThreatModel,
    observe,
)
from gradveil.data import Dataset
from gradveil.defenses import NoDefense
from gradveil.models import build_model
from gradveil.scoring import score


@dataclass(frozen=True)
class AttackRow:
    """One attack with one time budget, over all batches."""

    attack: str
    images: int
    """In one batch."""
    budget: float
    """Seconds for each batch."""
    seconds: float
    """What it took in the mean: less where an attack ended by itself."""
    steps_per_second: float
    psnr: float
    """In dB, matched, the mean over all images."""
    psnr_per_second: float
    """psnr / seconds."""


def attack_contenders() -> dict[str, Attack]:
    """The attacks on a gradient of a batch that need no special model, with very many steps."""
    steps = 2000
    strong = InvertingGradients.strong(steps=steps)
    return {
        "Inverting Gradients, the paper's": InvertingGradients.paper(steps=steps),
        "strong": strong,
        "strong, without peeling": replace(strong, peel=None),
        "adaptive, without peeling": Adaptive(replace(strong, peel=None)),
        "GradInversion": GradInversion(steps=steps),
        "DLG": DLG(restarts=1),
        "iDLG": IDLG(restarts=1),
    }


def bench_attack(
    data: Dataset,
    attacks: dict[str, Attack],
    *,
    starts: Sequence[int] = (0, 100, 200),
    images: int = 4,
    budgets: Sequence[float] = (5.0, 20.0, 60.0),
    progress: Callable[[str], None] = lambda _: None,
) -> list[AttackRow]:
    """The paper's MNIST CNN, untrained, no defense, labels known: PSNR after so many seconds.

    Args:
        data: Images of 28x28.
        attacks: By name; each should heed a time budget and tell its progress.
        starts: The first image of each batch.
        images: In one batch.
        budgets: Seconds for each batch.
        progress: Told what is being measured.
    """
    rows = []
    for name, attack in attacks.items():
        for budget in budgets:
            progress(f"{name}, {budget:g} s")
            runs = [_run(data, attack, start, images, budget) for start in starts]
            seconds, steps, psnr = (sum(part) / len(runs) for part in zip(*runs, strict=True))
            rates = (steps / seconds, psnr, psnr / seconds)
            rows.append(AttackRow(name, images, budget, seconds, *rates))
    return rows


def _run(
    data: Dataset, attack: Attack, start: int, images: int, budget: float
) -> tuple[float, int, float]:
    """Seconds, steps and PSNR of one attack on one batch."""
    steps = 0

    def count(*_: float) -> None:
        nonlocal steps
        steps += 1

    observation, batch = _observed(data, start, images)
    begin = time.perf_counter()
    configured = attack.configured(time_budget=budget, progress=count)
    reconstruction = configured(observation, torch.Generator().manual_seed(start))
    seconds = time.perf_counter() - begin
    psnr = score(reconstruction, batch, normalization=data, ssim=False).psnr
    assert psnr is not None
    return (
        seconds,
        max(steps, reconstruction.history[-1][0] if reconstruction.history else 0),
        float(psnr.mean()),
    )


def _observed(data: Dataset, start: int, images: int) -> tuple[Observation, Any]:
    batch = data.batch(start, images)
    observation = observe(
        build_model("simple-conv-net", seed=0).eval(),
        cross_entropy,
        batch,
        NoDefense(),
        threat=ThreatModel(mechanism="known"),
        num_classes=data.num_classes,
        input_range=data.range,
        generator=torch.Generator().manual_seed(start),
    )
    return observation, batch
