"""Benchmark of attacks: the PSNR that each reaches in a given time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.nn.functional import cross_entropy

from gradveil._drawing import new_figure, save_figure
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

from .cases import digits
from .tables import Out, report, tell


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


def draw_attacks(rows: Sequence[AttackRow], path: Path) -> None:
    """One line for each attack: seconds to the right, PSNR upwards."""
    figure = new_figure(7, 4.2)
    axis = figure.subplots()
    markers = "oXPsD^v*<>"
    for index, name in enumerate(dict.fromkeys(row.attack for row in rows)):
        mine = [row for row in rows if row.attack == name]
        axis.plot(
            [row.seconds for row in mine],
            [row.psnr for row in mine],
            marker=markers[index % len(markers)],
            label=name,
        )
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100, 200)
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlim(0.8 * min(row.seconds for row in rows), 1.25 * max(row.seconds for row in rows))
    axis.set_xlabel("seconds for a batch")
    axis.set_ylabel("PSNR in dB, matched")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    save_figure(figure, path)


def main(
    budget: Annotated[
        list[float] | None, typer.Option(help="Seconds for each batch; repeatable. 5, 20, 60.")
    ] = None,
    batches: Annotated[int, typer.Option(help="Batches, 100 images apart.", min=1)] = 3,
    images: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 4,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    out: Out = None,
) -> None:
    """Steps per second of each attack, and the PSNR it reaches in a given time."""
    rows = bench_attack(
        digits(mnist, 100 * (batches - 1) + images),
        attack_contenders(),
        starts=range(0, 100 * batches, 100),
        images=images,
        budgets=budget or (5.0, 20.0, 60.0),
        progress=tell,
    )
    report(rows, "attack", out)
    if out is not None:
        draw_attacks(rows, out / "attack.png")


if __name__ == "__main__":
    typer.run(main)
