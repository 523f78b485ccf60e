"""A realistic result to draw: real MNIST digits, nine defenses, two attacks, every kind of gap."""

import base64
import io
from dataclasses import replace
from functools import cache

import torch
from PIL import Image
from torch import Tensor

from gradveil.attacks import ThreatModel
from gradveil.audit import Federation
from gradveil.audit._result import (
    AttackResult,
    AuditResult,
    BoundResult,
    Curve,
    DefenseResult,
    Frontier,
    LayerResult,
    Leak,
    Point,
    Releases,
    RunResult,
    Setup,
)
from gradveil.data import Dataset, load_dataset
from gradveil.scoring import Interval, bootstrap_interval, score

PRIOR = "Gaussian with the data's mean and covariance"
ATTACKS = {"inverting-gradients(steps=300)": False, "adaptive(steps=300)": True}
TENSORS = {"conv1.weight": 500, "conv1.bias": 20, "conv2.weight": 25000, "fc.weight": 94000}
NOISY_PRUNING = "gradient-pruning(ratio=0.9, noise=gradient-noise(scale=0.03))"
OPTIMAL = "optimal-pruning(ratio=0.6, noise=optimal-noise(scale=0.03))"
CLAMPED = "optimal-clamped-noise(scale=0.2)"
DEFENSES = (
    # name, specification, U1, U2, trace bound, loss, share kept, noise of the two attacks
    ("no defense", "no-defense", 1.0, 0.0, None, 1.62, 1.0, (0.35, 0.15)),
    ("noise", "gradient-noise(scale=0.05)", 1.0, -0.0102, 0.0193, 1.71, 1.0, (1.3, 0.9)),
    ("optimal noise", "optimal-noise(scale=0.2)", 1.0, -0.0102, 0.0391, 1.72, 1.0, (1.5, 1.2)),
    (
        "noise with clamping",
        "clamped-noise(scale=0.04)",
        0.981,
        -0.0101,
        0.0174,
        1.7,
        1.0,
        (1.35, 1.0),
    ),
    ("optimal noise with clamping", CLAMPED, 0.981, -0.0101, 0.0352, 1.71, 1.0, (1.45, 1.25)),
    ("pruning", "gradient-pruning(ratio=0.9)", 0.912, 0.0, None, 1.83, 0.1, (0.8, 0.6)),
    ("optimal pruning", "optimal-pruning(ratio=0.6)", 0.912, 0.0, None, 1.8, 0.38, (0.9, 0.5)),
    ("noisy pruning", NOISY_PRUNING, 0.912, -0.0041, 0.0411, 1.93, 0.1, (1.2, 1.1)),
    ("optimal noisy pruning", OPTIMAL, 0.912, -0.0041, 0.0587, 1.91, 0.38, (1.4, 1.3)),
)


@cache
def example_result(dataset: str = "mnist", size: int = 8) -> AuditResult:
    """The whole of it."""
    data = load_dataset(dataset)
    truth, _ = data.batch(0, size)
    defenses = tuple(_defense(data, truth, place, *row) for place, row in enumerate(DEFENSES))
    return AuditResult(
        setup=_setup(data, size),
        defenses=defenses,
        frontier=_frontier(defenses),
        originals=_pngs(data, truth),
        notes=("The bounds do not count what noise levels planned from the batch reveal.",),
    )


def tabular_result() -> AuditResult:
    """Inputs that are not images: no pictures, no PSNR, no SSIM."""
    result = example_result(size=2)
    setup = replace(result.setup, is_image=False, input_shape=(13,), data="wine.npz", model="mlp")
    defenses = tuple(map(_without_images, result.defenses))
    frontier = replace(_frontier(defenses), guess_psnr=None)
    return replace(result, setup=setup, defenses=defenses, frontier=frontier, originals=())


def incomplete_result() -> AuditResult:
    """Stopped by hand: the last defenses were not attacked."""
    result = example_result(size=2)
    rest = tuple(replace(d, attacks=()) for d in result.defenses[5:])
    return replace(result, defenses=result.defenses[:5] + rest, stopped="interrupted")


def unattacked_result() -> AuditResult:
    """Only bounds and utilities."""
    result = example_result(size=2)
    defenses = tuple(replace(d, attacks=()) for d in result.defenses)
    return replace(result, defenses=defenses, frontier=_frontier(defenses))


def rebuilt_pictures(data: Dataset, size: int, seed: int, blur: float) -> tuple[str, ...]:
    """The first examples as an attack may have rebuilt them."""
    return _guess_pngs(data, data.batch(0, size)[0], seed, blur)


def _frontier(defenses: tuple[DefenseResult, ...]) -> Frontier:
    """One point each, and no goals."""
    undefended, *others = map(_point, defenses)
    curves = []
    for defense, point in zip(defenses[1:], others, strict=True):
        curves.append(Curve(defense.name, "", "", (point,)))
    return Frontier(
        undefended=undefended,
        curves=tuple(curves),
        answers=(),
        loss_before=2.31,
        moments=(0,),
        guess="the mean of 1,000 public examples",
        guess_psnr=12.1,
    )


def _point(defense: DefenseResult) -> Point:
    leaks = [
        Leak(0, a.attack, a.mse, a.psnr, None, a.runs[0].pictures, 0, len(a.runs), works=True)
        for a in sorted(defense.attacks, key=lambda attack: attack.mse.mean)
    ]
    bound = defense.bound.trace_mse if defense.bound else None
    return Point(defense.defense, None, tuple(leaks[:1]), defense.loss, None, None, bound)


def _setup(data: Dataset, size: int) -> Setup:
    return Setup(
        data=f"{data.name} (embedded)",
        model="simple-conv-net",
        parameters=119530,
        input_shape=tuple(data.inputs.shape[1:]),
        batch_size=size,
        batches=2,
        seeds=2,
        training_seeds=3,
        seed=0,
        federation=Federation(rounds=5),
        threat=ThreatModel(mechanism="known"),
        releases=Releases(),
        is_image=True,
        device="cpu",
        command=f"gradveil audit --dataset {data.name} --batch-size {size} --seed 0",
        versions={"gradveil": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
    )


def _defense(
    data: Dataset,
    truth: Tensor,
    place: int,
    name: str,
    spec: str,
    first: float,
    second: float,
    trace: float | None,
    loss: float,
    kept: float,
    blurs: tuple[float, ...],
) -> DefenseResult:
    bound = None
    if trace:
        counted = {"unmatched_mse": 10 * trace}
        bound = BoundResult("full", PRIOR, 9 * trace, 0.004, trace, 12.1, False, **counted)
    names = zip(ATTACKS.items(), blurs, strict=True)
    attacks = tuple(_attack(data, truth, 10 * place, attack, blur) for attack, blur in names)
    guess = "The strongest attack that was run rebuilt recognisable digits."
    return DefenseResult(
        name=name,
        defense=spec,
        utility_first=first,
        utility_second=second,
        bound=bound,
        formal_privacy="no (ε, δ): nothing limits what one example can change",
        loss=Interval(loss, loss - 0.03, loss + 0.04),
        bytes_sent=int(478120 * kept * (2 if kept < 1 else 1)),
        time_ratio=1.0 + 0.27 * place,
        layers=_layers(place, -second, kept),
        attacks=attacks,
        verdict=f"{guess} " + ("A bound holds." if bound else "No guarantee holds for others."),
    )


def _attack(
    data: Dataset, truth: Tensor, seed: int, attack: tuple[str, bool], blur: float
) -> AttackResult:
    spec, knows = attack
    runs = [_run(data, truth, seed + i, blur, batch=i // 2) for i in range(4)]
    return AttackResult(
        attack=spec,
        knows_defense=knows,
        mse=_estimate([v for run in runs for v in run.mse]),
        mse_pixels=_estimate([v for run in runs for v in run.mse_pixels]),
        psnr=_estimate([v for run in runs for v in run.psnr or ()]),
        ssim=_estimate([v for run in runs for v in run.ssim or ()]),
        label_accuracy=1.0 if knows else None,
        seconds=6.4 + blur,
        runs=(replace(runs[0], pictures=_guess_pngs(data, truth, seed, blur)), *runs[1:]),
    )


def _run(data: Dataset, truth: Tensor, seed: int, blur: float, batch: int) -> RunResult:
    scores = score(_guess(truth, seed, blur), truth, normalization=data, ssim=False)
    assert scores.psnr is not None
    return RunResult(
        batch=batch,
        seed=seed % 2,
        status="finished",
        seconds=6.4,
        mse=tuple(scores.mse.tolist()),
        mse_pixels=tuple(scores.mse_pixels.tolist()),
        psnr=tuple(scores.psnr.tolist()),
        ssim=tuple(scores.mse.neg().exp().tolist()),
        label_accuracy=None,
    )


def _guess(truth: Tensor, seed: int, blur: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(truth.shape, generator=generator)
    return truth + 0.6 * blur * noise


def _guess_pngs(data: Dataset, truth: Tensor, seed: int, blur: float) -> tuple[str, ...]:
    return _pngs(data, _guess(truth, seed, blur))


def _estimate(values: list[float]) -> Interval:
    generator = torch.Generator().manual_seed(0)
    return bootstrap_interval(torch.tensor(values), generator=generator)


def _layers(place: int, noise: float, kept: float) -> tuple[LayerResult, ...]:
    powers = enumerate(TENSORS.items())
    return tuple(
        LayerResult(
            name, size, noise * (1 + i) ** (place % 2 + 0.3 * i), min(1.0, kept * (1 + i / 9))
        )
        for i, (name, size) in powers
    )


def _pngs(data: Dataset, inputs: Tensor) -> tuple[str, ...]:
    pixels = (data.to_pixels(inputs).clamp(0, 1) * 255).round().to(torch.uint8)
    return tuple(_png(image) for image in pixels)


def _png(image: Tensor) -> str:
    array = image.squeeze(0).numpy() if len(image) == 1 else image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()


def _without_images(defense: DefenseResult) -> DefenseResult:
    attacks = tuple(
        replace(a, psnr=None, ssim=None, runs=tuple(_plain(run) for run in a.runs))
        for a in defense.attacks
    )
    bound = replace(defense.bound, mse_decibels=None) if defense.bound else None
    return replace(defense, attacks=attacks, bound=bound)


def _plain(run: RunResult) -> RunResult:
    return replace(run, psnr=None, ssim=None, pictures=())
