"""Benchmark of differentially private gradients, beside Opacus where that is installed."""

import logging
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrize import register_parametrization

from gradveil._imports import require
from gradveil._random import generator_or_fresh
from gradveil._timing import time_ratios
from gradveil.data import Dataset, load_dataset
from gradveil.defenses import PrivateNoise
from gradveil.messages import trainable_parameters
from gradveil.models import build_model
from gradveil.shapes import Shape

from .cases import Case, peak_of, some_shape
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
    jobs, note = private_contenders(case), ""
    try:
        require("the comparison", "opacus", "opacus")
        jobs |= {OPACUS[0]: _opacus_job(case, hooks), OPACUS[1]: _opacus_job(case, ghost_clipping)}
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
    """`PrivateNoise` with three kinds of shapes and with continuous noise, and two slower ways.

    Where weights are computed, the gradient of each example is made, not only its norm. Where the
    model's code looks at values, examples are run one after the other.
    """
    computed, looking = deepcopy(case.model), nn.Sequential(_Looking(), case.model)
    for layer in [m for m in computed.modules() if isinstance(m, nn.Linear | nn.Conv2d)]:
        register_parametrization(layer, "weight", _Computed())
    rows_and_columns = some_shape(case.model)
    levels = rows_and_columns.levels(trainable_parameters(case.model))
    entries = Shape({name: (level,) for name, level in levels.items()})
    return {
        "isotropic": _private_job(case),
        "rows × columns": _private_job(case, rows_and_columns),
        "entry by entry": _private_job(case, entries),
        "isotropic, continuous noise": _private_job(case, grid=False),
        "isotropic, every gradient made": _private_job(replace(case, model=computed)),
        "isotropic, examples one by one": _private_job(replace(case, model=looking)),
    }


def _private_job(case: Case, shape: Shape | None = None, *, grid: bool = True) -> Job:
    """A step as a client takes it, with secure noise."""
    defense = PrivateNoise(1.0, 1.0, shape, batch_size=len(case.inputs), grid=grid)
    generator, message = generator_or_fresh(None), case.message
    return lambda: defense(message, case.inputs, generator)


class _Computed(nn.Module):
    """w ↦ 1 w: a weight that is computed, as weight normalisation does."""

    def forward(self, weight: Tensor) -> Tensor:
        """The same weight, in another tensor."""
        return 1.0 * weight


class _Looking(nn.Module):
    """The inputs as they are, after a look at them that torch cannot batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The same inputs."""
        return inputs if float(inputs.sum()) != torch.inf else -inputs


Private = tuple[nn.Module, Callable[[Tensor, Tensor], None]]
"""A wrapped copy of a model, and what puts private gradients of a batch into its `.grad`."""


def hooks(net: nn.Module, clip: float, **options: Any) -> Private:
    """Opacus' hooks, which make the gradient of each example; options are its optimizer's."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(deepcopy(net).train())
    optimizer = DPOptimizer(_never_stepped(model), max_grad_norm=clip, **options)
    return model, _gradient(model, optimizer, cross_entropy)


def ghost_clipping(net: nn.Module, clip: float, **options: Any) -> Private:
    """Opacus' ghost clipping, which finds norms without these gradients, in two passes."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        deepcopy(net).train(), max_grad_norm=clip, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        _never_stepped(model), max_grad_norm=clip, **options
    )
    loss_of = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())
    return model, _gradient(model, optimizer, loss_of)


def _never_stepped(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def _gradient(model: nn.Module, optimizer: Any, loss_of: Any) -> Callable[[Tensor, Tensor], None]:
    def gradient(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of hooks on a model whose inputs have no gradient
            loss_of(model(inputs), targets).backward()
        optimizer.pre_step()

    return gradient


def _opacus_job(case: Case, wrap: Callable[..., Private]) -> Job:
    size = len(case.inputs)
    _, gradient = wrap(case.model, 1.0, noise_multiplier=1.0, expected_batch_size=size)
    return lambda: gradient(case.inputs, case.targets)


def main(
    batch: Annotated[int, typer.Option(help="Examples in a batch.", min=1)] = 64,
    repeats: Annotated[int, typer.Option(help="Of each timing, in turns.", min=1)] = 15,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    out: Out = None,
) -> None:
    """A differentially private gradient over a plain one; Opacus beside it, if installed."""
    logging.getLogger("gradveil").setLevel(logging.ERROR)  # that one way is slow is measured here
    report(bench_private(load_dataset(mnist), batch=batch, repeats=repeats), "private", out)


if __name__ == "__main__":
    typer.run(main)
