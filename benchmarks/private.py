"""Benchmark of differentially private gradients, beside Opacus where that is installed."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrize import register_parametrization

from gradveil._extras import require
from gradveil._random import generator_or_fresh
from gradveil._timing import time_ratios
from gradveil.data import Dataset
from gradveil.defenses import PrivateNoise
from gradveil.models import build_model
from gradveil.shapes import Shape

from .cases import Case, digits
from .memory import peak_of
from .tables import Out, report

Job = Callable[[], object]

OPACUS = ("Opacus, hooks", "Opacus, ghost clipping")


@dataclass(frozen=True)
class PrivateRow:
    """One way to a private gradient: its cost over that of a plain one of the same batch."""

    model: str
    batch: int
    contender: str
    time_ratio: float | None
    """Clipping and noise included; `None` where the contender is not installed."""
    peak_ratio: float | None
    """Of the memory for tensors."""
    note: str = ""


def bench_private(data: Dataset, *, batch: int = 64, repeats: int = 15) -> list[PrivateRow]:
    """Private gradients of the paper's MNIST CNN over `loss.backward()`, timed in turns."""
    case = Case("MNIST CNN", build_model("simple-conv-net"), *data.batch(0, batch))
    jobs, note = private_contenders(case) | {"isotropic, every gradient made": _made_job(case)}, ""
    try:
        jobs |= opacus_contenders(case)
    except ModuleNotFoundError as error:
        note = str(error)
    times = time_ratios(case.plain_gradient, jobs, repeats)
    plain = peak_of(case.plain_gradient)
    rows = [
        PrivateRow(case.name, batch, name, times[name], peak_of(job) / plain)
        for name, job in jobs.items()
    ]
    missing = [name for name in OPACUS if name not in jobs]
    return rows + [PrivateRow(case.name, batch, name, None, None, note) for name in missing]


def private_contenders(case: Case) -> dict[str, Job]:
    """`PrivateNoise` with the three kinds of shapes, and with continuous noise."""
    parameters = {n: p.detach() for n, p in case.model.named_parameters()}
    shapes = {
        "isotropic": None,
        "rows × columns": Shape({n: _rows_and_columns(p) for n, p in parameters.items()}),
        "entry by entry": Shape({n: (_levels(p.shape),) for n, p in parameters.items()}),
    }
    jobs = {name: _private_job(case, shape) for name, shape in shapes.items()}
    return jobs | {"isotropic, continuous noise": _private_job(case, None, grid=False)}


def opacus_contenders(case: Case) -> dict[str, Job]:
    """Opacus' two modes, with its own noise; a `ModuleNotFoundError` without it."""
    require("the comparison", "opacus", "opacus")
    return {OPACUS[0]: _hooks_job(case), OPACUS[1]: _ghost_job(case)}


def _private_job(case: Case, shape: Shape | None, *, grid: bool = True) -> Job:
    """A step as a client takes it, with secure noise."""
    defense = PrivateNoise(1.0, 1.0, shape, batch_size=len(case.inputs), grid=grid)
    generator, message = generator_or_fresh(None), case.message
    return lambda: defense(message, case.inputs, generator)


class _Itself(nn.Module):
    """w ↦ 1 w: a weight that is computed, as weight normalisation does."""

    def forward(self, weight: Tensor) -> Tensor:
        """The same weight, in another tensor."""
        return 1.0 * weight


def _made_job(case: Case) -> Job:
    """Where weights are computed, the gradient of each example is made, not only its norm."""
    model = deepcopy(case.model)
    for layer in [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]:
        register_parametrization(layer, "weight", _Itself())
    return _private_job(replace(case, model=model), None)


def _rows_and_columns(parameter: Tensor) -> tuple[Tensor, ...]:
    rows = _levels((len(parameter), *[1] * (parameter.dim() - 1)))
    return (rows,) if parameter.dim() < 2 else (rows, _levels((1, *parameter.shape[1:])))


def _levels(shape: tuple[int, ...]) -> Tensor:
    """Relative variances from 0.1 to 1."""
    return torch.linspace(0.1, 1.0, torch.Size(shape).numel()).view(shape)


def _hooks_job(case: Case) -> Job:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(deepcopy(case.model).train())
    optimizer = DPOptimizer(_sgd(model), **_options(case))

    def job() -> None:
        optimizer.zero_grad(set_to_none=True)
        _quietly(cross_entropy(model(case.inputs), case.targets))
        optimizer.pre_step()

    return job


def _ghost_job(case: Case) -> Job:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        deepcopy(case.model).train(), max_grad_norm=1.0, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(_sgd(model), **_options(case))
    loss_of = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())

    def job() -> None:
        optimizer.zero_grad(set_to_none=True)
        _quietly(loss_of(model(case.inputs), case.targets))
        optimizer.pre_step()

    return job


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _options(case: Case) -> dict[str, float]:
    size = len(case.inputs)
    return {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": size}


def _quietly(loss: Tensor) -> None:
    """`loss.backward()` without the warnings of hooks on a model whose inputs have no gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss.backward()  # type: ignore[no-untyped-call]


def main(
    batch: Annotated[int, typer.Option(help="Examples in a batch.", min=1)] = 64,
    repeats: Annotated[int, typer.Option(help="Of each timing, in turns.", min=1)] = 15,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    out: Out = None,
) -> None:
    """A differentially private gradient over a plain one; Opacus beside it, if installed."""
    report(bench_private(digits(mnist, batch), batch=batch, repeats=repeats), "private", out)


if __name__ == "__main__":
    typer.run(main)
