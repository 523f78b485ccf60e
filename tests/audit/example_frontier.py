"""A realistic audit over strengths to draw: six curves of five points, three answers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from gradveil.audit import AuditResult, Federation
from gradveil.audit._result import Answer, Curve, Frontier, Leak, Point, ToldApart
from gradveil.audit.report._words import named, what_it_does
from gradveil.data import Dataset, load_dataset
from gradveil.scoring import Interval

from .example_result import example_result, rebuilt_pictures

MOMENTS = (0, 20, 40)
CANDIDATES = 60
GUESS_PSNR = 12.1
ADAPTIVE = "adaptive(steps=300)"
STRENGTHS = {
    "noise": (0.003, 0.01, 0.03, 0.1, 0.3),
    "optimal noise": (0.01, 0.03, 0.1, 0.3, 1.0),
    "pruning": (0.5, 0.8, 0.9, 0.97, 0.99),
    "optimal pruning": (0.3, 0.5, 0.7, 0.9, 0.97),
    "noise with clamping": (0.003, 0.01, 0.03, 0.1, 0.3),
    "private noise": (0.05, 0.2, 0.5, 1.0, 2.0),
}
SPECS = {
    "noise": ("gradient-noise(scale={})", "scale", ""),
    "optimal noise": ("optimal-noise(scale={})", "scale", "public"),
    "pruning": ("gradient-pruning(ratio={})", "ratio", ""),
    "optimal pruning": ("optimal-pruning(ratio={})", "ratio", "public"),
    "noise with clamping": ("clamped-noise(scale={}, clip=0.05)", "scale", ""),
    "private noise": (
        "private-noise(noise_multiplier={}, clip=1.0)",
        "noise_multiplier",
        "public",
    ),
}
ERRORS = {
    "noise": (0.05, 0.2, 0.45, 0.8, 1.05),
    "optimal noise": (0.08, 0.3, 0.68, 0.94, 1.3),
    "pruning": (0.01, 0.03, 0.1, 0.3, 0.62),
    "optimal pruning": (0.02, 0.08, 0.21, 0.5, 0.8),
    "noise with clamping": (0.06, 0.22, 0.5, 0.82, 1.02),
    "private noise": (0.35, 0.74, 0.96, 1.2, 9.0),
}
LOSSES = {
    "noise": (0.42, 0.47, 0.71, 1.6, 2.4),
    "optimal noise": (0.42, 0.46, 0.64, 1.04, 2.2),
    "pruning": (0.43, 0.5, 0.62, 1.1, 1.75),
    "optimal pruning": (0.43, 0.47, 0.55, 0.86, 1.5),
    "noise with clamping": (0.43, 0.49, 0.75, 1.64, 2.5),
    "private noise": (0.62, 0.86, 1.22, 2.05, math.inf),
}
EPSILONS = (812.0, 163.0, 61.4, 30.1, 12.6)
BATCHES = "2 batches of 8 images, 2 seeds each, at rounds 0, 20 and 40"
NOT_PROVED = (
    "No proof: a stronger attack, or one who knows more of the images, may recover more. Who took"
    " part may still be recognised."
)


@cache
def frontier_result(dataset: str = "mnist", size: int = 8) -> AuditResult:
    """The whole of it."""
    base = example_result(dataset, size)
    setup = replace(
        base.setup,
        federation=Federation(rounds=40),
        weights="untrained",
        date="2026-11-17",
        command=f"gradveil audit --dataset {dataset} --batch-size {size}",
    )
    kept = {"no defense": base.defenses[0], "optimal noise": base.defenses[2]}
    defenses = tuple(replace(d, name=name, loss=None) for name, d in kept.items())
    return replace(
        base,
        setup=setup,
        defenses=defenses,
        frontier=_frontier(load_dataset(dataset), size),
    )


def unreached_result() -> AuditResult:
    """A goal that nothing reaches is the only one."""
    result = frontier_result(size=2)
    answers = result.frontier.answers[2:]
    return replace(result, frontier=replace(result.frontier, answers=answers))


def bare_frontier_result() -> AuditResult:
    """Tables, one moment, nothing trained, nothing told apart, no answers, no pictures."""
    result = frontier_result(size=2)
    setup = replace(result.setup, is_image=False, input_shape=(13,), data="wine.npz", model="mlp")
    curves = tuple(
        replace(curve, points=tuple(map(_bare, curve.points))) for curve in result.frontier.curves
    )
    frontier = replace(
        result.frontier,
        curves=curves,
        undefended=_bare(result.frontier.undefended),
        answers=(),
        loss_before=None,
        moments=(0,),
        guess_psnr=None,
    )
    return replace(result, setup=setup, defenses=(), originals=(), frontier=frontier)


def _bare(point: Point) -> Point:
    leak = replace(point.leaks[0], psnr=None, told_apart=None, pictures=())
    return replace(point, leaks=(leak,), loss=None, accuracy=None, extra_loss=None)


def _frontier(data: Dataset, size: int) -> Frontier:
    undefended = _point(data, size, "no-defense", None, 0.004, 0.41, 0)
    curves = tuple(_curve(data, size, name) for name in STRENGTHS)
    return Frontier(
        undefended=undefended,
        curves=curves,
        answers=_answers(curves, undefended),
        loss_before=2.31,
        moments=MOMENTS,
        guess="the mean of its class among 1,000 public examples",
        guess_psnr=GUESS_PSNR,
    )


def _curve(data: Dataset, size: int, name: str) -> Curve:
    spec, amount_name, plan = SPECS[name]
    rows = zip(STRENGTHS[name], ERRORS[name], LOSSES[name], strict=True)
    points = [
        _point(data, size, spec.format(amount), amount, error, loss, 100 + place)
        for place, (amount, error, loss) in enumerate(rows)
    ]
    if name == "private noise":
        pairs = zip(points, EPSILONS, strict=True)
        points = [replace(point, epsilon=epsilon) for point, epsilon in pairs]
    return Curve(name, amount_name, plan, tuple(points))


def _point(
    data: Dataset, size: int, spec: str, amount: float | None, error: float, loss: float, seed: int
) -> Point:
    leaks = tuple(
        _leak(data, size, moment, error * (1 + 0.12 * place), seed + place)
        for place, moment in enumerate(MOMENTS)
    )
    extra = loss / 0.41 - 1
    noisy = "noise" in spec or "clamped-noise" in spec
    accuracy = max(0.1, 0.91 - 0.36 * (loss - 0.41)) if math.isfinite(loss) else 0.1
    return Point(
        defense=spec,
        amount=amount,
        leaks=leaks,
        loss=Interval(loss, loss - 0.03, loss + 0.04),
        accuracy=Interval(accuracy, accuracy - 0.02, accuracy + 0.02),
        extra_loss=Interval(extra, extra - 0.05, extra + 0.06),
        bound=0.04 * error if noisy else None,
        bound_holds=spec.startswith("private"),
    )


def _leak(data: Dataset, size: int, moment: int, error: float, seed: int) -> Leak:
    psnr = GUESS_PSNR - 10 * math.log10(error)
    rate = max(1 / CANDIDATES, min(1.0, 1.05 - 0.9 * error))
    bits = math.log2(CANDIDATES) * min(1.0, max(0.02, rate))
    return Leak(
        round=moment,
        attack=ADAPTIVE,
        error=Interval(error, 0.86 * error, 1.15 * error),
        psnr=Interval(psnr, psnr - 0.6, psnr + 0.7),
        told_apart=ToldApart(
            CANDIDATES,
            40,
            Interval(rate, max(0.0, rate - 0.09), min(1.0, rate + 0.08)),
            Interval(bits, 0.9 * bits, min(math.log2(CANDIDATES), 1.1 * bits)),
        ),
        pictures=rebuilt_pictures(data, size, seed, 1.6 * math.sqrt(error)),
        copies=round(2 * size * max(0.0, 1 - 10 * error)),
        examples=2 * size,
        gain=Interval(24.0, 23.0, 25.0),
        works=True,
    )


def _use(curves: Sequence[Curve], undefended: Point, name: str) -> str:
    point = next(curve for curve in curves if curve.name == name).points[3]
    return f"Use {named(name, point.defense)}. {what_it_does(point, undefended, True)}"


def _answers(curves: Sequence[Curve], undefended: Point) -> tuple[Answer, ...]:
    return (
        Answer(
            title="Attacks no better than a guess",
            goals=("psnr<=13",),
            reached=True,
            sentence=_use(curves, undefended, "optimal noise"),
            name="optimal noise",
            defense="optimal-noise(scale=0.3)",
            python="defense = gradveil.OptimalNoise(scale=0.3, source=gradveil.Public(images))",
            rests_on=f"The strongest of 3 attacks, adaptive, on {BATCHES}.",
            not_promised=NOT_PROVED,
            equal=("private noise",),
        ),
        Answer(
            title="Blurred",
            goals=("psnr<=16",),
            reached=True,
            sentence=_use(curves, undefended, "optimal pruning"),
            name="optimal pruning",
            defense="optimal-pruning(ratio=0.9)",
            python="defense = gradveil.OptimalPruning(ratio=0.9)",
            rests_on=f"The strongest of 3 attacks, adaptive, on {BATCHES}.",
            not_promised=NOT_PROVED,
        ),
        Answer(
            title="Formal",
            goals=("epsilon<=8",),
            reached=False,
            sentence=(
                "No defense that was tried promises ε of 8 or less and still trains. Private noise"
                " with a noise multiplier of 2 has ε = 12.6, 4.6 above it."
            ),
            rests_on="An accountant over 100 rounds, δ = 1e-5.",
            not_promised="ε does not say what an attacker rebuilds.",
        ),
    )
