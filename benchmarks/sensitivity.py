"""Benchmark of sensitivity estimators: share of the optimum, and cost."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

import torch
import typer
from torch import Tensor

from gradveil._tensors import Tensors
from gradveil._timing import time_ratios
from gradveil.defenses import Defense, GradientNoise, OptimalNoise
from gradveil.mechanisms import Mechanism
from gradveil.messages import GradientMessage, Message
from gradveil.sensitivity import Measurement, Moments, PerExample, Sketch, draw_probes
from gradveil.theory import share_of_optimum

from .cases import Case, large_cases, paper_cases, peak_of, update_cases
from .tables import Out, report, tell


@dataclass(frozen=True)
class PaperAlgorithm:
    """Steps 1 to 3 of the paper's Algorithm 1 with plain reverse mode, one probe after the other.

    The derivative of g along v is that of ⟨∂⟨g, u⟩/∂x, v⟩ with respect to u: two backward passes
    through the graph of the gradient for each probe.
    """

    probes: int = 10

    def __call__(self, message: Message, inputs: Tensor, generator: torch.Generator) -> Measurement:
        """Measure a gradient message at these inputs."""
        assert isinstance(message, GradientMessage)
        parameters = {n: p.clone().requires_grad_() for n, p in message.parameters.items()}
        x = inputs.clone().requires_grad_()
        loss = message.loss(parameters, x, message.targets)
        gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        sums: Tensors = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for direction in draw_probes(inputs, self.probes, generator):
            for name, tangent in zip(sums, _along(gradients, x, direction), strict=True):
                sums[name] += tangent.square() / self.probes
        values = {name: g.detach() for name, g in zip(sums, gradients, strict=True)}
        return Measurement(values, sums)


def _along(gradients: tuple[Tensor, ...], x: Tensor, direction: Tensor) -> tuple[Tensor, ...]:
    dummies = [torch.zeros_like(g, requires_grad=True) for g in gradients]
    (pulled,) = torch.autograd.grad(gradients, x, dummies, create_graph=True)
    return torch.autograd.grad(pulled, dummies, direction, retain_graph=True)


@dataclass(frozen=True)
class SensitivityRow:
    """One estimator on one model and batch; ratios are to one plain gradient of the same batch."""

    model: str
    batch: int
    estimator: str
    time_ratio: float
    share_of_optimum: float | None
    peak_memory_ratio: float
    extra_parameter_tensors: float
    """Peak memory beyond the plain gradient's, in tensors of the size of all parameters."""


def contenders() -> dict[str, Defense]:
    """Everything counts: gradient, sensitivities, plan and noise."""

    def noise(estimator: object, granularity: str = "parameter") -> OptimalNoise:
        return OptimalNoise(
            0.1,
            cap=1e6,
            estimator=estimator,  # type: ignore[arg-type]
            granularity=granularity,
            source="private",
        )

    return {
        "isotropic noise": GradientNoise(0.1),
        "paper's algorithm, 10 probes": noise(PaperAlgorithm()),
        "sketch, 10 probes": noise(Sketch(10)),
        "per example, 1 probe": noise(PerExample(1)),
        "per example, 4 probes": noise(PerExample(4)),
        "auto": noise("auto"),
        "auto, one level per layer": noise("auto", "layer"),
        "from the model": OptimalNoise(0.1, cap=1e6),
    }


def bench_sensitivity(
    cases: Iterable[Case],
    defenses: dict[str, Defense],
    repeats: int = 5,
    draws: int = 5,
    reference_probes: int = 16,
) -> list[SensitivityRow]:
    """A row for each case and defense, which runs as a client would call it.

    Timings take turns, and medians are reported; shares of the optimum are means over `draws`
    seeds. `reference_probes` for each example of a batch of 64, more for smaller ones, stand for
    exact sensitivities.
    """
    rows = []
    for case in cases:
        tell(f"{case.name}, batch of {len(case.inputs)}")
        reference = case.reference(reference_probes) if case.graded else None
        fitting = _fitting(case, defenses)
        jobs = {name: _job(case, defense) for name, defense in fitting.items()}
        ratios = time_ratios(case.plain_gradient, jobs, repeats)
        plain = peak_of(case.plain_gradient)
        size = sum(4 * value.numel() for value in case.message.parameters.values())
        for name, defense in fitting.items():
            peak = peak_of(jobs[name])
            rows.append(
                SensitivityRow(
                    model=case.name,
                    batch=len(case.inputs),
                    estimator=name,
                    time_ratio=ratios[name] / _calls(defense),
                    share_of_optimum=_share(case, defense, reference, draws),
                    peak_memory_ratio=peak / plain,
                    extra_parameter_tensors=(peak - plain) / size,
                )
            )
    return rows


def _fitting(case: Case, defenses: dict[str, Defense]) -> dict[str, Defense]:
    """The defenses whose estimator can measure the case's message; on large models only "auto"."""
    if not case.graded:
        return {name: d for name, d in defenses.items() if d.estimator == "auto"}
    if isinstance(case.message, GradientMessage):
        return defenses
    limited = (PaperAlgorithm, PerExample)
    return {n: d for n, d in defenses.items() if not isinstance(d.estimator, limited)}


def _calls(defense: Defense) -> int:
    """From one plan to the next."""
    return getattr(defense.origin, "refresh_every", 1)


def _job(case: Case, defense: Defense) -> Callable[[], None]:
    """A plan, and the calls that use it."""
    generator = torch.Generator().manual_seed(0)

    def job() -> None:
        defense.reset()
        for _ in range(_calls(defense)):
            defense(case.message, case.inputs, generator)

    return job


def _share(case: Case, defense: Defense, reference: Moments | None, draws: int) -> float | None:
    if reference is None:
        return None
    shares = []
    for seed in range(draws if defense.about.needs.sensitivities else 1):
        generator = torch.Generator().manual_seed(seed)
        mechanism = defense.respond(case.message, case.inputs, generator).mechanism
        assert isinstance(mechanism, Mechanism)
        shares.append(share_of_optimum(reference, mechanism))
    return sum(shares) / len(shares)


def main(
    repeats: Annotated[int, typer.Option(help="Of each timing, in turns.", min=1)] = 7,
    draws: Annotated[int, typer.Option(help="Seeds that shares are averaged over.", min=1)] = 5,
    reference_probes: Annotated[
        int, typer.Option(help="For each example of a batch of 64, in place of the truth.", min=1)
    ] = 16,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    cifar: Annotated[str, typer.Option(help="CIFAR-10: embedded, a folder or .npz.")] = "cifar10",
    large: Annotated[bool, typer.Option(help="Add transformers of up to 30 M.")] = False,
    only: Annotated[str, typer.Option(help="Contenders with this in their name.")] = "",
    out: Out = None,
) -> None:
    """Share of the optimal bound against cost, for every estimator and the paper's algorithm."""
    cases = chain(paper_cases(mnist, cifar), update_cases(mnist), large_cases() if large else ())
    wanted = {name: defense for name, defense in contenders().items() if only in name}
    report(bench_sensitivity(cases, wanted, repeats, draws, reference_probes), "sensitivity", out)


if __name__ == "__main__":
    typer.run(main)
